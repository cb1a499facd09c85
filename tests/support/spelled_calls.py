"""Random tool calls, written as the models of each format write them."""

import json
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from text.tool_calls.formats import ToolFormat, make_parser
from text.tool_calls.parts import Part

NAMES = ("get_sky", "get", "get_2", "f", "A-b")
PYTHON_NAMES = tuple(name for name in NAMES if "-" not in name)
_STRINGS = (
    "",
    "Köln 👍",
    "日本",
    'say "hi"',
    "a\\b",
    "{",
    "}]",
    "</tool_call>",
    "[TOOL_CALLS]",
    "it's; (x, y)",
    "\n\t",
    "a=b",
)
_TEXTS = ("I will look.", "a < b", "<tool_box> {x}", "[1, 2] [f", "{} done", "<|python", "[TOOL_", "日本;", "x; y")


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict[str, Any]


def random_call(chance: random.Random, *, names: tuple[str, ...]) -> Call:
    keys = chance.sample(("a", "b1", "max_n"), chance.randint(0, 2))
    return Call(chance.choice(names), {key: _value(chance, depth=1) for key in keys})


def random_text(chance: random.Random) -> str:
    return " ".join(chance.choices(_TEXTS, k=chance.choice((0, 0, 0, 1, 1, 2))))


def _value(chance: random.Random, *, depth: int) -> Any:
    kind = chance.randrange(7 if depth else 5)
    if kind == 5:
        return [_value(chance, depth=depth - 1) for _ in range(chance.randint(0, 2))]
    if kind == 6:
        return {chance.choice(_STRINGS): _value(chance, depth=depth - 1) for _ in range(chance.randint(0, 2))}
    return (chance.choice(_STRINGS), chance.randint(-99, 999), chance.random() * 1e9, chance.random() < 0.5, None)[kind]


def spell(tool_format: ToolFormat, calls: list[Call], chance: random.Random) -> str:
    return _SPELLERS[tool_format](calls, chance)


def _object(call: Call, chance: random.Random, key: str) -> str:
    name = f'"name": {json.dumps(call.name)}'
    arguments = f'"{key}": {json.dumps(call.arguments, ensure_ascii=chance.random() < 0.5)}'
    fields = [name, arguments] if chance.random() < 0.8 else [arguments, name]
    if chance.random() < 0.2:
        fields.insert(chance.choice((0, 2)), '"type": "function"')
    return "{" + chance.choice((", ", ",", ",\n ")).join(fields) + "}"


def _hermes(calls: list[Call], chance: random.Random) -> str:
    space = chance.choice(("", "\n"))
    return "\n".join(f"<tool_call>{space}{_object(call, chance, 'arguments')}{space}</tool_call>" for call in calls)


def _llama(calls: list[Call], chance: random.Random) -> str:
    tag = chance.choice(("", "<|python_tag|>"))
    return tag + chance.choice(("; ", ";", "\n")).join(_object(call, chance, "parameters") for call in calls)


def _pythonic(calls: list[Call], chance: random.Random) -> str:
    written = [
        f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})" for call in calls
    ]
    inner = "[" + ", ".join(written) + "]"
    return f"<|python_start|>{inner}<|python_end|>" if chance.random() < 0.5 else inner


def _mistral(calls: list[Call], chance: random.Random) -> str:
    if chance.random() < 0.5:
        return "[TOOL_CALLS] [" + ", ".join(_object(call, chance, "arguments") for call in calls) + "]"
    mark = chance.choice(("[ARGS]", "[CALL_ID]abcDEF123[ARGS]"))
    return "".join(f"[TOOL_CALLS]{call.name}{mark}{json.dumps(call.arguments)}" for call in calls)


_SPELLERS: dict[ToolFormat, Callable[[list[Call], random.Random], str]] = {
    "hermes": _hermes,
    "llama": _llama,
    "pythonic": _pythonic,
    "mistral": _mistral,
}


def parse_all(tool_format: ToolFormat, names: Collection[str], text: str) -> list[Part]:
    """All parts of a whole answer."""
    parser = make_parser(tool_format, names)
    return parser.add(text) + parser.flush()
