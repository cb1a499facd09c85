"""Every way to say what an answer must look like comes to one spec, or is refused with the field's name."""

import json
from typing import Any

import msgspec
import pytest

from protocol.answer_format import MAX_FORMAT_BYTES, Wanted, wanted_format
from protocol.checks import check_request, decode_body
from protocol.errors import ProtocolError
from protocol.guided import (
    ANY_OBJECT,
    AnyText,
    Choice,
    Grammar,
    InOrder,
    JsonSchema,
    Literal,
    OneOf,
    Regex,
    Tag,
    TaggedText,
)
from protocol.requests import ChatCompletionRequest

DECODER = msgspec.json.Decoder(ChatCompletionRequest)
X = {"type": "object", "properties": {"x": {"type": "integer"}}}
TAG = {"begin": "<f>", "schema": X, "end": "</f>"}
NEW_TAG = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": X}, "end": "</f>"}


def spelled(value: object) -> str:
    """As it stands in the body."""
    return json.dumps(value, separators=(",", ":"))


SCHEMA = JsonSchema(spelled(X))
AS_TAG = Tag("<f>", SCHEMA, "</f>")


def read(fields: dict[str, Any]) -> Wanted | None:
    body = spelled({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})
    request = decode_body(body.encode(), DECODER)
    check_request(request)
    return wanted_format(request)


def of_type(name: str, **fields: object) -> dict[str, Any]:
    return {"response_format": {"type": name, **fields}}


def outputs(**fields: object) -> dict[str, Any]:
    return {"structured_outputs": fields}


def tree(part: object) -> dict[str, Any]:
    return of_type("structural_tag", format=part)


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        (of_type("json_object"), ANY_OBJECT),
        (of_type("json_schema", json_schema={"name": "x", "schema": X, "strict": True}), SCHEMA),
        (of_type("json_schema", json_schema={"name": "x", "description": "d", "schema": X}), SCHEMA),
        (of_type("structural_tag", structures=[TAG], triggers=["<f"]), TaggedText((AS_TAG,), ("<f",))),
        (outputs(json=X), SCHEMA),
        (outputs(json=spelled(X)), SCHEMA),
        (outputs(json=X, disable_any_whitespace=True), JsonSchema(spelled(X), "")),
        (outputs(json=X, whitespace_pattern=" ?"), JsonSchema(spelled(X), " ?")),
        (outputs(json=X, disable_additional_properties=True), JsonSchema(spelled(X), is_closed=True)),
        (outputs(json_object=True, disable_fallback=True), ANY_OBJECT),
        (outputs(regex="[a-z]"), Regex("[a-z]")),
        (outputs(choice=["a", "b"]), Choice(("a", "b"))),
        (outputs(grammar="start: \"x\""), Grammar('start: "x"')),
        (
            outputs(structural_tag=spelled({"type": "structural_tag", "structures": [TAG], "triggers": ["<"]})),
            TaggedText((AS_TAG,), ("<",)),
        ),
        ({"guided_json": X}, SCHEMA),
        ({"guided_json": spelled(X), "guided_whitespace_pattern": ""}, JsonSchema(spelled(X), "")),
        ({"guided_regex": "a+"}, Regex("a+")),
        ({"guided_choice": ["a"]}, Choice(("a",))),
        ({"guided_grammar": "g"}, Grammar("g")),
        (tree(NEW_TAG), AS_TAG),
        (tree({"type": "regex", "pattern": "a"}), Regex("a")),
        (tree({"type": "grammar", "grammar": "g"}), Grammar("g")),
        (
            tree({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "."}]}),
            InOrder((AnyText(), Literal("."))),
        ),
        (
            tree({"type": "or", "elements": [NEW_TAG, {"type": "const_string", "value": "."}]}),
            OneOf((AS_TAG, Literal("."))),
        ),
        (
            tree({"type": "triggered_tags", "triggers": ["<"], "tags": [NEW_TAG], "at_least_one": True}),
            TaggedText((AS_TAG,), ("<",), min_tags=1),
        ),
        (
            tree({"type": "tags_with_separator", "tags": [NEW_TAG], "separator": ",", "stop_after_first": True}),
            TaggedText((AS_TAG,), max_tags=1, is_text_free=False, separator=","),
        ),
    ],
)  # fmt: skip
def test_a_format_comes_to_its_spec(fields: dict[str, Any], spec: object) -> None:
    wanted = read(fields)
    assert wanted is not None
    assert wanted.spec == spec


@pytest.mark.parametrize("fields", [{}, {"response_format": None}, of_type("text"), {"structured_outputs": None}])
def test_text_is_no_format(fields: dict[str, Any]) -> None:
    assert read(fields) is None


LARGE = {"enum": ["x" * MAX_FORMAT_BYTES]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (of_type("json_schema"), "response_format.json_schema"),
        (of_type("json_schema", json_schema={"name": "x"}), "response_format.json_schema"),
        (of_type("json_schema", json_schema={"schema": X}), "response_format.json_schema.name"),
        (of_type("xml"), "response_format.type"),
        (of_type("structural_tag"), "response_format"),
        (tree({"type": "nothing"}), "response_format.format.type"),
        (tree({"type": "regex"}), "response_format.format.pattern"),
        (outputs(), "structured_outputs"),
        (outputs(json_object=False), "structured_outputs"),
        (outputs(regex="a", choice=["a"]), "structured_outputs.choice"),
        (outputs(choice=[]), "structured_outputs.choice"),
        (outputs(xml="a"), "structured_outputs.xml"),
        (outputs(structural_tag="{"), "structured_outputs.structural_tag"),
        (outputs(structural_tag='{"type":"text"}'), "structured_outputs.structural_tag"),
        (outputs(json=LARGE), "structured_outputs.json"),
        (outputs(regex="x" * (MAX_FORMAT_BYTES + 1)), "structured_outputs.regex"),
        (outputs(choice=["x" * 1000] * 100), "structured_outputs.choice"),
        (outputs(choice=[""] * 100_000), "structured_outputs.choice"),
        (of_type("json_schema", json_schema={"name": "x", "schema": LARGE}), "response_format.json_schema.schema"),
        (tree({"type": "json_schema", "json_schema": LARGE}), "response_format"),
        ({"guided_json": LARGE}, "guided_json"),
        ({"guided_regex": "a", **of_type("json_object")}, "guided_regex"),
    ],
)
def test_what_says_no_form_or_two_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        read(fields)
    assert refused.value.param == param
