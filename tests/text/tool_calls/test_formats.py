"""What a stream says of an answer is what the whole answer says, wherever the text is cut."""

import json
import random
from collections.abc import Iterable, Iterator

import pytest

from protocol.messages import FunctionCall
from tests.support.spelled_calls import NAMES, PYTHON_NAMES, Call, parse_all, random_call, random_text, spell
from tests.support.templates import HERMES, LLAMA, MISTRAL
from text.tool_calls.formats import ToolFormat, detect_format, make_parser
from text.tool_calls.parts import CallArguments, CallBegun, CallEnded, Part, join_calls, join_text

FORMATS: tuple[ToolFormat, ...] = ("hermes", "llama", "pythonic", "mistral")
NUM_CALLS = 500
BROKEN: dict[ToolFormat, list[str]] = {
    "hermes": ["<tool_call>{not json}</tool_call>", '<tool_call>{"name": "f", "argum', "<tool_call></tool_call>"],
    "llama": ['{"name": "f"', '{"name": "nobody", "parameters": {}}', "{x}", '{"name": "f", "parameters": 7}'],
    "pythonic": ["[f(x)]", "[nobody(a=1)]", "[f(a=1", "[f(a=open('x'))]", "[f]"],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]x", "[TOOL_CALLS][1]", "[TOOL_CALLS]f g{}", "[ARGS]{}"],
}
HALF = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": "b',
    "llama": '{"name": "f", "parameters": {"a": "b',
    "mistral": '[TOOL_CALLS]f[ARGS]{"a": "b',
}


def told(parts: Iterable[Part]) -> tuple[str, list[FunctionCall], list[str]]:
    """The text, the calls, and the order of all, whatever the pieces; ids are made up."""
    parts = list(parts)
    order = [part if isinstance(part, str) else type(part).__name__ for part in parts]
    order = [each for i, each in enumerate(order) if each != "CallArguments" and (i == 0 or each != order[i - 1])]
    merged = "|".join(each if each in ("CallBegun", "CallEnded") else "text" for each in order)
    while "text|text" in merged:
        merged = merged.replace("text|text", "text")
    return join_text(parts), [call.function for call in join_calls(parts)], merged.split("|")


def parse_cut(tool_format: ToolFormat, pieces: Iterable[str]) -> list[Part]:
    parser = make_parser(tool_format, NAMES)
    return [part for piece in pieces for part in parser.add(piece)] + parser.flush()


def answers(tool_format: ToolFormat, num_calls: int) -> Iterator[tuple[str, list[Call]]]:
    """Texts with calls in between, until so many calls were made."""
    chance = random.Random(f"{tool_format} calls")
    names = PYTHON_NAMES if tool_format == "pythonic" else NAMES
    num_made = 0
    while num_made < num_calls:
        calls = [random_call(chance, names=names) for _ in range(chance.choice((1, 1, 1, 2)))]
        num_made += len(calls)
        ending = random_text(chance) if chance.random() < 0.5 else chance.choice(("", "\n", " "))
        yield f"{random_text(chance)}{spell(tool_format, calls, chance)} {ending}", calls


@pytest.mark.parametrize("tool_format", FORMATS)
def test_random_calls_cut_at_every_boundary_are_the_calls_of_the_whole(tool_format: ToolFormat) -> None:
    for text, calls in answers(tool_format, NUM_CALLS):
        whole = told(parse_all(tool_format, NAMES, text))
        assert [(call.name, json.loads(call.arguments)) for call in whole[1]] == [
            (call.name, call.arguments) for call in calls
        ], text
        for cut in range(1, len(text)):
            assert told(parse_cut(tool_format, (text[:cut], text[cut:]))) == whole, (text, cut)
        assert told(parse_cut(tool_format, text)) == whole


@pytest.mark.parametrize("tool_format", FORMATS)
def test_what_is_no_call_stays_text_beside_what_is(tool_format: ToolFormat) -> None:
    chance = random.Random(1)
    call = Call("f", {"a": "x"})
    for broken in BROKEN[tool_format]:
        assert join_text(parse_all(tool_format, NAMES, broken)) == broken
        for text in (f"a {broken} b", f"{broken}\n"):
            parts = parse_all(tool_format, NAMES, text)
            assert (join_text(parts), join_calls(parts)) == (text, [])
            assert told(parse_cut(tool_format, text)) == told(parts)
        mixed = f"a\n{spell(tool_format, [call], chance)}\n {broken} b"
        parts = parse_all(tool_format, NAMES, mixed)
        assert [each.function.name for each in join_calls(parts)] == ["f"]
        assert join_text(parts).endswith(f"{broken} b")


@pytest.mark.parametrize("tool_format", FORMATS)
def test_pieces_of_calls_in_any_order_are_read_alike_however_they_are_cut(tool_format: ToolFormat) -> None:
    """Debris of every kind: nothing is lost, and nothing depends on the cut."""
    chance = random.Random(f"{tool_format} debris")
    whole = [text for text, _ in answers(tool_format, 60)] + BROKEN[tool_format]
    for _ in range(300):
        bits = [text[(start := chance.randrange(len(text))) : start + 30] for text in chance.choices(whole, k=3)]
        text = "".join(bits)
        expected = told(parse_all(tool_format, NAMES, text))
        assert told(parse_cut(tool_format, text)) == expected, text
        if not expected[1]:
            assert expected[0] == text


@pytest.mark.parametrize("tool_format", sorted(HALF))
def test_arguments_go_out_as_they_come(tool_format: ToolFormat) -> None:
    parser = make_parser(tool_format, NAMES)
    parts = parser.add(HALF[tool_format])
    assert [type(part) for part in parts] == [CallBegun, CallArguments]
    assert parser.add("c") == [CallArguments("c")]
    assert parser.add('"') == [CallArguments('"')]
    assert parser.add("}")[-1] == CallEnded()


def test_a_pythonic_value_goes_out_when_it_is_whole() -> None:
    parser = make_parser("pythonic", ["f"])
    assert parser.add("[f(a=") == []
    assert join_calls(parser.add("'it', b=Tr"))[0].function.arguments == '{"a": "it"'
    assert parser.add("ue)") == [CallArguments(', "b": true'), CallArguments("}"), CallEnded()]


@pytest.mark.parametrize("tool_format", sorted(HALF))
def test_a_call_that_has_begun_and_breaks_off_is_not_whole_and_what_follows_is_text(tool_format: ToolFormat) -> None:
    text = HALF[tool_format] + '" oops'
    parser = make_parser(tool_format, NAMES)
    parts = parser.add(text) + parser.flush()
    assert [call.function.arguments for call in join_calls(parts)] == ['{"a": "b" ']
    assert join_text(parts) == "oops"
    assert CallEnded() not in parts
    assert told(parse_cut(tool_format, text)) == told(parts)


@pytest.mark.parametrize("tool_format", sorted(HALF))
def test_a_line_break_in_a_string_is_escaped(tool_format: ToolFormat) -> None:
    parts = parse_all(tool_format, NAMES, HALF[tool_format] + '\n\x01"}')
    assert json.loads(join_calls(parts)[0].function.arguments) == {"a": "b\n\x01"}


def test_a_name_that_begins_like_another_is_told_apart() -> None:
    for tool_format, text in (
        ("llama", '{"name": "get", "parameters": {}}'),
        ("pythonic", "[get()]"),
    ):
        for names, num_calls in ((["get_sky"], 0), (["get_sky", "get"], 1)):
            assert len(join_calls(parse_all(tool_format, names, text))) == num_calls  # type: ignore[arg-type]


def test_mistrals_ids_are_what_its_templates_take() -> None:
    [call] = join_calls(parse_all("mistral", ["f"], "[TOOL_CALLS]f{}"))
    assert len(call.id) == 9 and call.id.isalnum()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (HERMES.template, "hermes"),
        (LLAMA.template, "hermes"),
        (MISTRAL.template, "hermes"),
        ("{{ '<|python_tag|>' + call }}", "llama"),
        ('respond with {"name": function name, "parameters": dictionary of argument name and its value}', "llama"),
        ("[func_name1(params_name1=params_value1), func_name2(params)]", "pythonic"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
    ],
)
def test_the_format_is_what_the_template_shows(template: str, expected: str) -> None:
    assert detect_format([template]) == expected


def test_a_deep_or_endless_head_takes_no_time_to_speak_of() -> None:
    """A head that was no call's is not looked at again: a quarter of a million characters, each read once."""
    for text in ('{"a":' * 50_000, "[f(a=" + "(" * 250_000, '{"name":"f","parameters":' + "[" * 250_000):
        for tool_format in ("llama", "pythonic"):
            parse_all(tool_format, ["f"], text)  # type: ignore[arg-type]
