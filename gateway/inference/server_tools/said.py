"""Parses what the model said in a round, from a whole answer or from a stream's chunks."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_CALLS = 16
"""Tool calls per round. Further calls are answered with an error that tells the model so."""
_Json = dict[str, Any]
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Asked:
    """A tool call that the model asks for."""

    id: str
    name: str
    arguments: str

    def message(self) -> _Json:
        return self._message(self.arguments)

    def history(self) -> _Json:
        """The call for the model's next round. Arguments that are not a JSON object become `{}`, since chat templates
        could not render them."""
        try:
            _OBJECT.decode(self.arguments)
        except (ValueError, RecursionError):
            return self._message("{}")
        return self._message(self.arguments)

    def _message(self, arguments: str) -> _Json:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class Said:
    text: str | None
    calls: tuple[Asked, ...]
    finish_reason: str | None

    def wants(self, *, without: Collection[str]) -> tuple[Asked, ...]:
        """The calls of all tools but `without` (the client's own), if the answer is complete; otherwise none."""
        # OpenAI sends `stop` after a forced call.
        is_whole = self.finish_reason in ("tool_calls", "stop", "function_call")
        return tuple(call for call in self.calls if call.name not in without) if is_whole else ()


@dataclass
class CallParts:
    """Tool calls assembled from deltas."""

    _calls: dict[int, _Json] = field(default_factory=dict)

    def add(self, deltas: Any) -> None:
        for delta in deltas if isinstance(deltas, list) else ():
            if not isinstance(delta, dict):
                continue
            call = self._calls.setdefault(_index(delta, len(self._calls)), {"id": "", "name": "", "arguments": ""})
            function = _mapping(delta.get("function"))
            call["id"] = call["id"] or _text(delta.get("id"))
            call["name"] += _text(function.get("name"))
            call["arguments"] += _text(function.get("arguments"))

    def calls(self) -> tuple[Asked, ...]:
        return _distinct([self._calls[index] for index in sorted(self._calls)])


def said_in(body: Mapping[str, Any]) -> Said:
    """body: a chat completion with one choice. Parts of any other shape count as nothing said."""
    choices = body.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    message = _mapping(choice.get("message"))
    calls = message.get("tool_calls")
    found = [
        {
            "id": _text(call.get("id")),
            "name": _text(function.get("name")),
            "arguments": _text(function.get("arguments")),
        }
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, dict)
        for function in [_mapping(call.get("function"))]
    ]
    return Said(_text(message.get("content")) or None, _distinct(found), choice.get("finish_reason"))


def said_in_stream(stream: bytes) -> Said:
    """What the stream's first choice said. Parts of any other shape count as nothing said."""
    texts: list[str] = []
    calls = CallParts()
    reason: str | None = None
    for line in stream.split(b"\n"):
        choice = _first_choice(line)
        delta = _mapping(choice.get("delta"))
        texts.append(_text(delta.get("content")))
        calls.add(delta.get("tool_calls"))
        reason = _text(choice.get("finish_reason")) or reason
    return Said("".join(texts) or None, calls.calls(), reason)


def _first_choice(line: bytes) -> Mapping[str, Any]:
    if not line.startswith(b"data:"):
        return {}
    try:
        choices = _mapping(msgspec.json.decode(line[5:])).get("choices")
    except (ValueError, RecursionError):
        return {}
    found = [_mapping(choice) for choice in choices] if isinstance(choices, list) else []
    return next((choice for choice in found if choice.get("index", 0) == 0), {})


def _distinct(calls: list[_Json]) -> tuple[Asked, ...]:
    """The calls, with our own ids where the member gave none or repeated one: ids link results to their calls."""
    taken: set[str] = set()
    made = []
    for i, call in enumerate(calls):
        call_id = call["id"] if call["id"] and call["id"] not in taken else f"call{i:05d}"
        taken.add(call_id)
        made.append(Asked(call_id, call["name"], call["arguments"]))
    return tuple(made)


def _index(delta: Mapping[str, Any], default: int) -> int:
    index = delta.get("index")
    return index if isinstance(index, int) else default


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
