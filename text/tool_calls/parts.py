"""The parts that a parser finds in an answer, in order: text, and calls as they grow."""

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.messages import FunctionCall, ToolCall


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call's id and the function's name, which are certain; its arguments follow."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON of the last call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The last call's arguments are a whole JSON object. A call without this mark was cut or broke off."""


Part = str | CallBegun | CallArguments | CallEnded


def join_calls(parts: Iterable[object]) -> list[ToolCall]:
    """The calls among all parts of an answer."""
    calls: list[ToolCall] = []
    for part in parts:
        if isinstance(part, CallBegun):
            calls.append(ToolCall(id=part.id, function=FunctionCall(part.name, "")))
        elif isinstance(part, CallArguments):
            calls[-1].function.arguments += part.text
    return calls


def join_text(parts: Iterable[Part]) -> str:
    return "".join([part for part in parts if isinstance(part, str)])
