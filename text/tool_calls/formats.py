"""The format in which a model writes its calls: as its chat template shows, or as the operator sets it."""

import re
from collections.abc import Collection, Iterable
from typing import Literal

from text.tool_calls.hermes import HermesParser
from text.tool_calls.llama import LlamaParser
from text.tool_calls.mistral import MistralParser
from text.tool_calls.parser import ToolCallParser
from text.tool_calls.pythonic import PythonicParser

ToolFormat = Literal["hermes", "llama", "pythonic", "mistral"]

_PARSERS: dict[ToolFormat, type[ToolCallParser]] = {
    "hermes": HermesParser,
    "llama": LlamaParser,
    "pythonic": PythonicParser,
    "mistral": MistralParser,
}
TOOL_FORMATS = tuple(_PARSERS)
_PYTHONIC = re.compile(r"\[func_name1\(|<\|python_start\|>")
_LLAMA = re.compile(r'<\|python_tag\|>|"parameters": dictionary of argument name')


def detect_format(template_sources: Iterable[str]) -> ToolFormat:
    """Hermes's format if the templates show none: most models that were tuned on calls have seen it."""
    text = "\n".join(template_sources)
    if "[TOOL_CALLS]" in text:
        return "mistral"
    if "<tool_call>" in text:
        return "hermes"
    if _LLAMA.search(text):
        return "llama"
    return "pythonic" if _PYTHONIC.search(text) else "hermes"


def marks_of(tool_format: ToolFormat) -> tuple[str, ...]:
    """Special tokens that are part of an answer's text if it is searched for calls."""
    return _PARSERS[tool_format].marks


def make_parser(tool_format: ToolFormat, names: Collection[str]) -> ToolCallParser:
    return _PARSERS[tool_format](names)
