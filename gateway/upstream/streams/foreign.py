"""Streams of other OpenAI-compatible servers: figures come in a usage chunk; until then an event counts as a token."""

import re
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.upstream.streams.events import EventBuffer
from protocol.accounting import joint_reason

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_USAGE = re.compile(rb'"usage" ?: ?\{')
_REASON = re.compile(rb'"finish_reason" ?: ?"')
_FEW_EVENTS = 4
"""Not worth halving."""
_PRIVATE_COMMENTS = (b": tokens", b": accounting", b":tokens", b":accounting")


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class ForeignUsage(msgspec.Struct):
    """Usage as foreign servers report it: only what all of them have is required."""

    prompt_tokens: _Count
    completion_tokens: _Count = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.prompt_tokens_details
        return (details.cached_tokens or 0) if details is not None else 0


class Choice(msgspec.Struct):
    finish_reason: str | None = None
    delta: Any = None

    @property
    def has_token(self) -> bool:
        """Most servers begin a chat with an event that says who speaks, and nothing else."""
        if not isinstance(self.delta, dict):
            return True
        return any(value for name, value in self.delta.items() if name != "role")


class _Chunk(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: ForeignUsage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class ForeignStream:
    """Read as the standard says. Comments in our own workers' private form are not believed, and not passed on."""

    accounting = None
    is_waiting = False

    def __init__(self, *, wants_usage: bool, model_at_member: str, model: str) -> None:
        self._buffer = EventBuffer()
        self._wants_usage = wants_usage
        self._rename = _rename(model_at_member, model) if model_at_member != model else None
        self._finish_reasons: list[str] = []
        self.num_tokens = 0
        self.usage: ForeignUsage | None = None
        self.has_content = False
        self.is_done = False
        self.error: bytes | None = None

    @property
    def finish_reason(self) -> str | None:
        return joint_reason(self._finish_reasons) if self._finish_reasons else None

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets of `chunk`; `[DONE]` and errors are held back. Raises BrokenStream."""
        return self._read(self._buffer.feed(chunk))

    def finish(self) -> bytes:
        """The same for what is left at the connection's end."""
        return self._read(self._buffer.finish())

    def _read(self, block: bytes) -> bytes:
        if not block or self.is_done or self.error is not None:
            return b""
        num_events = block.count(b"\n\n")
        # Exactly one line `data: ...` an event: the form of nearly all servers and events.
        is_plain = block.startswith(b"data: ") and block.count(b"\n\ndata: ") == num_events - 1
        if is_plain and block.count(b"\n") == 2 * num_events:
            passed_on = self._read_plain(block)
        else:
            passed_on = self._read_each(block)
        return self._rename(passed_on) if self._rename is not None else passed_on

    def _read_plain(self, block: bytes) -> bytes:
        """Events of one line each: what the gateway must know stands in few of them, which are found by halving."""
        if not _is_notable(block):
            self.num_tokens += block.count(b"\n\n")
            self.has_content = True
            return block
        if block.count(b"\n\n") <= _FEW_EVENTS:
            return self._read_each(block)
        middle = block.index(b"\n\n", len(block) // 2) + 2
        if middle == len(block):
            # The last event is longer than all the others.
            middle = block.rindex(b"\n\n", 0, -2) + 2
        passed_on = self._read_plain(block[:middle])
        is_over = self.is_done or self.error is not None
        return passed_on if is_over else passed_on + self._read_plain(block[middle:])

    def _read_each(self, block: bytes) -> bytes:
        return b"".join([self._read_event(event) for event in block.split(b"\n\n")])

    def _read_event(self, event: bytes) -> bytes:
        data: list[bytes] = []
        others: list[bytes] = []
        for line in event.split(b"\n"):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif line and not line.startswith(_PRIVATE_COMMENTS) and line != b"data":
                others.append(line)
        is_kept = bool(data) and self._note(b"\n".join(data))
        lines = [*others, *(b"data: " + value for value in data)] if is_kept else _comments(others)
        return b"\n".join(lines) + b"\n\n" if lines else b""

    def _note(self, payload: bytes) -> bool:
        """Read one event's data; whether the client gets it."""
        if self.is_done or self.error is not None:
            return False
        if payload.strip() == b"[DONE]":
            self.is_done = True
            return False
        chunk = _decode(payload)
        if chunk.error is not None and not chunk.choices:
            self.error = payload
            return False
        if chunk.usage is not None:
            self.usage = chunk.usage
            if not chunk.choices and not self._wants_usage:
                return False
        reasons = [choice.finish_reason for choice in chunk.choices or () if choice.finish_reason]
        self._finish_reasons += reasons
        if chunk.choices and not reasons and any(choice.has_token for choice in chunk.choices):
            self.num_tokens += 1
        self.has_content = True
        return True


class Rename:
    """The member's name for the model becomes the one that clients know."""

    def __init__(self, theirs: str, ours: str) -> None:
        old, new = msgspec.json.encode(theirs), msgspec.json.encode(ours)
        self._forms = [(b'"model"' + sign + old, b'"model"' + sign + new) for sign in (b":", b": ", b" : ", b" :")]

    def __call__(self, text: bytes) -> bytes:
        for theirs, ours in self._forms:
            text = text.replace(theirs, ours)
        return text


_rename = lru_cache(maxsize=1024)(Rename)
"""Made once for each pair of names."""


def _is_notable(block: bytes) -> bool:
    """Whether it says something that the gateway must know. Regular expressions search far more slowly than `in`."""
    return (
        b"[DONE]" in block
        or b'"error"' in block
        or b'"role"' in block
        or (b'"usage"' in block and _USAGE.search(block) is not None)
        or (
            block.count(b'"finish_reason":null') != block.count(b'"finish_reason"')
            and _REASON.search(block) is not None
        )
    )


def _comments(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.startswith(b":")]


def _decode(payload: bytes) -> _Chunk:
    """What is no chunk of OpenAI's shape is passed on unread."""
    try:
        return _CHUNK.decode(payload)
    except msgspec.MsgspecError:
        return _Chunk()
