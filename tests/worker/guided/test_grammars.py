"""What each kind of spec lets through, by texts that are complete, unfinished or wrong."""

import json

import pytest

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
    Spec,
    Tag,
    TaggedText,
)
from text.tokenizer import Tokenizer
from worker.guided import BadGrammar, Vocabulary
from worker.guided.compiler import compile_grammar


def schema(value: object, whitespace: str | None = None) -> JsonSchema:
    return JsonSchema(json.dumps(value), whitespace)


X = schema(
    {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
)
TAGS = (
    Tag('<tool_call>\n{"name": "f", "arguments": ', X, "}\n</tool_call>"),
    Tag('<tool_call>\n{"name": "g", "arguments": ', ANY_OBJECT, "}\n</tool_call>"),
)
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 3}}\n</tool_call>'
FREE = TaggedText(TAGS, ("<tool_call>",))
LIST = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "name": {"type": "string"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]}
PETS = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
    "$defs": {"Cat": CAT, "Dog": DOG},
}

DEFAULTS = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "$defs": {
        name: {"type": "object", "properties": {"kind": {"const": name.lower(), "default": name.lower()}, "age": {}}}
        for name in ("Cat", "Dog")
    },
}
TUPLE = {"items": [{"const": 1}, {"type": "string"}], "additionalItems": {"type": "null"}, "minItems": 2}

ENTANGLED = {
    "$defs": {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, "required": ["a"]}
        for i in reversed(range(300))
    }
    | {"d300": {"type": "null"}},
    "$ref": "#/$defs/d0",
}

COMPLETE, UNFINISHED, WRONG = "complete", "unfinished", "wrong"
CASES: list[tuple[Spec, dict[str, str]]] = [
    (X, {'{"x": 3}': COMPLETE, '{ "x":-30 }': COMPLETE, '{"x"': UNFINISHED, '{"x": "3': WRONG, '{"y': WRONG}),
    (schema({}), {"3": COMPLETE, '{"a":[null]}': COMPLETE, "{": UNFINISHED, "x": WRONG}),
    (schema(True), {"[true]": COMPLETE}),
    (ANY_OBJECT, {"{}": COMPLETE, '{"é": "\\n"}': COMPLETE, "[": WRONG, "{} ": WRONG}),
    (schema({"type": "array"}, ""), {"[1,2]": COMPLETE, "[1, 2]": WRONG}),
    (schema({"type": "array", "prefixItems": [{"const": 1}], "items": False, "minItems": 1}), {"[1]": COMPLETE}),
    (schema(LIST), {'{"next": {"next": null}}': COMPLETE, '{"next": 3': WRONG}),
    (schema(PETS), {'{"kind": "wolf"}': COMPLETE, '{"kind": "cat", "name": "Tom"}': COMPLETE, '{"kind": "cow': WRONG}),
    (schema(DEFAULTS), {'{"kind": "dog", "age": 3}': COMPLETE, '{"age"': WRONG, "{}": WRONG, '{"kind": "cow': WRONG}),
    (
        schema(TUPLE | {"type": "array"}),
        {'[1, "a"]': COMPLETE, '[1, "a", null]': COMPLETE, '[1, "a", 2': WRONG, "[2": WRONG},
    ),
    (schema({"type": "array", "items": [{"const": 1}], "additionalItems": False}), {"[1]": COMPLETE, "[1,": WRONG}),
    (schema({"oneOf": [{"type": "string"}, {"type": "integer"}]}), {'"a"': COMPLETE, "12": COMPLETE, "1.5": WRONG}),
    (schema({"format": "date"}), {'"2024-02-29"': COMPLETE, '"2023-02-29"': WRONG, '"1900-02-29"': WRONG}),
    (schema({"format": "time"}), {'"23:59:59Z"': COMPLETE, '"22:59:60Z"': WRONG, '"23:59:59"': WRONG}),
    (schema({"format": "date-time", "pattern": "Z$"}), {'"2024-02-29T10:00:00Z"': COMPLETE}),
    (schema({"type": "string", "pattern": r"^\S+$"}), {'"ab"': COMPLETE, '"a b': WRONG, '"a\ufeff': WRONG}),
    (schema({"enum": ["größer", 3, None]}), {'"größer"': COMPLETE, "null": COMPLETE, "4": WRONG}),
    (Choice(("yes", 'n"o', "maybe not")), {"yes": COMPLETE, 'n"o': COMPLETE, "maybe": UNFINISHED, "x": WRONG}),
    (Choice(("", "a")), {"": COMPLETE, "a": COMPLETE, "b": WRONG}),
    (Choice(tuple(f"choice {i}" for i in range(3000))), {"choice 2999": COMPLETE, "choice": UNFINISHED, "c3": WRONG}),
    (schema({"properties": {f"p{i}": {} for i in range(1400)}}), {'{"p7": 1, "p1399": 2}': COMPLETE}),
    (schema(ENTANGLED), {'{"a": {"a": {"a":': UNFINISHED}),
    (Regex("[0-9]{3}-[a-z]+"), {"123-abc": COMPLETE, "12": UNFINISHED, "12-": WRONG}),
    (Regex('a/b\n"c'), {'a/b\n"c': COMPLETE}),
    (Regex(""), {"": COMPLETE, "a": WRONG}),
    (Grammar('start: "x" n\nn: /[0-9]+/'), {"x12": COMPLETE, "x": UNFINISHED, "y": WRONG}),
    (Grammar('root ::= "x" [0-9]+'), {"x12": COMPLETE, "x": UNFINISHED, "y": WRONG}),
    (FREE, {"": COMPLETE, "hello": COMPLETE, f"so: {CALL} and {CALL}": COMPLETE, "so: <tool_call>": UNFINISHED}),
    (FREE, {"a <tool_ca": COMPLETE, "<tool_call> ": WRONG, '<tool_call>\n{"name": "h': WRONG}),
    (TaggedText(TAGS, ("<tool_call>",), max_tags=1), {"hi": COMPLETE, CALL: COMPLETE, f"{CALL}x": WRONG}),
    (TaggedText(TAGS, ("<tool_call>",), min_tags=1), {"hi": UNFINISHED, CALL: COMPLETE, f"{CALL}{CALL}": COMPLETE}),
    (
        TaggedText(TAGS, min_tags=1, is_text_free=False),
        {"": UNFINISHED, "h": WRONG, CALL: COMPLETE, CALL * 2: COMPLETE},
    ),
    (
        TaggedText(TAGS, min_tags=1, max_tags=2, is_text_free=False, separator="\n"),
        {CALL: COMPLETE, f"{CALL}\n{CALL}": COMPLETE, CALL * 2: WRONG, f"{CALL}\n{CALL}\n": WRONG},
    ),
    (TaggedText(TAGS, max_tags=1, is_text_free=False), {"": COMPLETE, CALL: COMPLETE, f"{CALL}\n": WRONG}),
    (InOrder((AnyText(), Literal("</think>"), X)), {"hm </think>": UNFINISHED, 'hm </think>{"x":1}': COMPLETE}),
    (InOrder((Literal("<p>"), AnyText())), {"<p>": COMPLETE, "<p>hm": COMPLETE, "hm": WRONG}),
    (OneOf((Literal("none"), X)), {"none": COMPLETE, '{"x": 1}': COMPLETE, '{"x"': UNFINISHED, "x": WRONG}),
]


@pytest.mark.parametrize(("spec", "texts"), CASES, ids=lambda value: str(value)[:40])
def test_a_spec_takes_what_it_describes_and_ends_where_it_may(
    spec: Spec, texts: dict[str, str], tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    grammar = compile_grammar(vocabulary, spec)
    for text, expected in texts.items():
        try:
            matcher = grammar.start(tokenizer.encode(text, add_special_tokens=False))
            found = COMPLETE if matcher.ll.is_accepting() else UNFINISHED
        except ValueError:
            found = WRONG
        assert (text, found) == (text, expected)


REFUSED = [
    (schema({"properties": {"a": {"items": {"not": {}}}}}), "schema/properties/a/items: the keyword 'not'"),
    (schema({"$defs": {"a": {"uniqueItems": True}}, "$ref": "#/$defs/a"}), "schema/$defs/a: the keyword 'uniqueItems'"),
    (schema({"items": {"$ref": "https://example.com/x.json"}}), "schema/items/$ref: 'https://example.com/x.json'"),
    (schema({"$ref": "#/$defs/none"}), "/$defs/none"),
    (schema({"type": "foo"}), "foo"),
    (schema(False), "no value"),
    (schema([]), "must be a JSON object"),
    (JsonSchema("{"), "not JSON"),
    (schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
    (schema({"type": "string", "pattern": "("}), "unclosed"),
    (schema({"oneOf": [{"type": "string"}, {"minLength": 2}]}), "oneOf is supported only"),
    (schema({"type": "integer", "multipleOf": 999_983}), "schema/multipleOf"),
    (schema({"prefixItems": [{"multipleOf": 9000 + i} for i in range(6)]}), "together exceed"),
    (schema({"multipleOf": "3"}), "multipleOf"),
    (schema({"items": {"type": "object", "minProperties": 2}}), "schema/items/minProperties"),
    (schema({"type": "integer", "minimum": 0, "exclusiveMinimum": True}), "schema/exclusiveMinimum"),
    (schema({"type": "string", "format": "klingon"}), "klingon"),
    (schema({"minLength": 5, "maxLength": 2, "type": "string"}), "minLength"),
    (schema({"enum": []}), "empty"),
    (schema({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}), "without end"),
    (schema({"type": "array", "items": {"$ref": "#"}, "minItems": 1}), "without end"),
    (schema({"$ref": "#"}), "without end"),
    (schema({"allOf": [{"anyOf": [{"$ref": "#/$defs/a"}]}], "$defs": {"a": {"$ref": "#"}}}), "without end"),
    (schema({"x-guidance": {"lenient": True}, "not": {}}), "'not'"),
    (schema({"type": "string", "pattern": "^(a{1000}){1000}$"}), "schema/pattern: its repetitions"),
    (schema({"patternProperties": {"(x{300}y){300}": {}}}), "repetitions"),
    (schema({"type": "object", "patternProperties": {f"^p{i}_": {} for i in range(1500)}}), "patternProperties"),
    (schema({"type": "object", "properties": {f"p{i}": {} for i in range(5000)}}), "more than 2000 schemas"),
    (schema({"items": [{}], "prefixItems": [{}]}), "schema/items must be a schema"),
    (schema({"patternProperties": 3}), "patternProperties"),
    (schema({"oneOf": [{"type": "object", "properties": [], "required": 1}] * 2}), "properties must be"),
    (Regex("((a|b{3}){200}[)]{90}){100}"), "repetitions"),
    (Grammar("start: /(a{1000}){1000}/"), "repetitions"),
    (Regex("(?<=a)b"), "look-around"),
    (Regex("("), "unclosed"),
    (Grammar("start: (("), "Expected token"),
    (Grammar('start: %json {"multipleOf": 999983}'), "%json"),
    (Grammar("start: start"), "no text"),
    (Grammar("%%%"), ""),
    (TaggedText(TAGS), "triggers"),
    (TaggedText(TAGS, ("<call>",)), "no trigger"),
    (TaggedText(TAGS, ("<tool_call>",), min_tags=2, max_tags=1), "at most 1"),
    (TaggedText((), ("<tool_call>",)), "at least one tag"),
    (InOrder((AnyText(), X)), "fixed text"),
]


@pytest.mark.parametrize(("spec", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_held_is_refused_by_name(spec: Spec, reason: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(BadGrammar) as refused:
        compile_grammar(vocabulary, spec)
    assert reason in refused.value.message


def test_nesting_without_measure_is_refused(vocabulary: Vocabulary) -> None:
    deep: Spec = X
    for _ in range(100):
        deep = InOrder((Literal("("), deep, Literal(")")))
    with pytest.raises(BadGrammar):
        compile_grammar(vocabulary, deep)
    for text in ('{"items":' * 100 + "{}" + "}" * 100, "[" * 100_000):
        with pytest.raises(BadGrammar):
            compile_grammar(vocabulary, JsonSchema(text))


def test_what_must_come_is_told_without_a_choice(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    grammar = compile_grammar(vocabulary, schema({"const": "a long constant of several tokens"}))
    matcher = grammar.start(tokenizer.encode('"a long', add_special_tokens=False))
    forced = matcher.force()
    assert forced[-1] in vocabulary.eos_token_ids
    assert tokenizer.decode(forced) == ' constant of several tokens"'
    assert not matcher.error
