"""Streams of other OpenAI-compatible servers: figures come in a usage chunk; until then an event counts as a token."""

import re
from functools import lru_cache
from typing import Any

import msgspec

from gateway.upstream.streams.events import EventBuffer
from protocol.accounting import joint_reason

_MAX_COUNT = 2**53
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_REASON = re.compile(rb'"finish_reason"\s*:\s*"')
_FEW_EVENTS = 4
"""Not worth halving."""
_PRIVATE_COMMENTS = (b": tokens", b": accounting", b":tokens", b":accounting")


class ForeignUsage(msgspec.Struct, frozen=True):
    """Usage as a foreign server reports it. completion_tokens None: the server did not report it."""

    prompt_tokens: int
    completion_tokens: int | None = None
    cached_tokens: int = 0


def read_usage(reported: object) -> ForeignUsage | None:
    """The figures of a `usage` field as far as they are counts; None without a count of the prompt. Never raises: odd
    figures are no reason to lose an answer."""
    if not isinstance(reported, dict):
        return None
    prompt_tokens = _count(reported.get("prompt_tokens"))
    details = reported.get("prompt_tokens_details")
    cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if prompt_tokens is None:
        return None
    return ForeignUsage(prompt_tokens, _count(reported.get("completion_tokens")), cached_tokens or 0)


def _count(reported: object) -> int | None:
    is_count = isinstance(reported, int) and not isinstance(reported, bool) and 0 <= reported <= _MAX_COUNT
    return reported if is_count else None  # type: ignore[return-value]


class Choice(msgspec.Struct):
    """Fields are Any: an odd value must not hide the others."""

    finish_reason: Any = None
    delta: Any = None
    message: Any = None
    text: Any = None

    @property
    def reason(self) -> str | None:
        return self.finish_reason if isinstance(self.finish_reason, str) and self.finish_reason else None

    @property
    def has_token(self) -> bool:
        """Most servers begin a chat with an event that says who speaks, and nothing else."""
        if not isinstance(self.delta, dict):
            return bool(self.text != "")
        return any(value for name, value in self.delta.items() if name != "role")


class _Chunk(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None

    @property
    def is_error(self) -> bool:
        if self.error is None and self.object != "error":
            return False
        return not self.choices or any(choice.reason == "error" for choice in self.choices)


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
        self._usage: ForeignUsage | None = None
        self._num_tokens_before_usage = 0
        self.has_content = False
        self.is_done = False
        self.error: bytes | None = None

    @property
    def finish_reason(self) -> str | None:
        return joint_reason(self._finish_reasons) if self._finish_reasons else None

    @property
    def usage(self) -> ForeignUsage | None:
        """The server's latest figures, and the tokens that came after them. Where it reports no completion tokens
        although some came, they are counted here."""
        usage = self._usage
        if usage is None or not self.num_tokens:
            return usage
        num_later = self.num_tokens - self._num_tokens_before_usage
        completion_tokens = usage.completion_tokens + num_later if usage.completion_tokens else self.num_tokens
        return msgspec.structs.replace(usage, completion_tokens=completion_tokens)

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
        num_events = block.count(b"\n\n")
        if not _is_notable(block, num_events):
            self.num_tokens += num_events
            self.has_content = True
            return block
        if num_events <= _FEW_EVENTS:
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
        if chunk.is_error:
            self.error = payload
            return False
        reasons = [choice.reason for choice in chunk.choices or () if choice.reason]
        self._finish_reasons += reasons
        if chunk.choices and not reasons and any(choice.has_token for choice in chunk.choices):
            self.num_tokens += 1
        usage = read_usage(chunk.usage)
        if usage is not None:
            self._usage, self._num_tokens_before_usage = usage, self.num_tokens
        if isinstance(chunk.usage, dict) and not chunk.choices and not self._wants_usage:
            return False
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


def _is_notable(block: bytes, num_events: int) -> bool:
    """Whether it holds anything but events of one token. Regular expressions search far more slowly than `in`."""
    return (
        _num_texts(block) != num_events
        or block.count(b'"choices"') != num_events
        or b'"choices":[]' in block
        or b"[DONE]" in block
        or b'"error"' in block
        or b'"role"' in block
        or (b'"usage"' in block and _USAGE.search(block) is not None)
        or (
            block.count(b'"finish_reason":null') != block.count(b'"finish_reason"')
            and _REASON.search(block) is not None
        )
    )


def _num_texts(block: bytes) -> int:
    """How many texts, none of them empty, its events hold, by the two ways in which nearly all servers write them."""
    for start in (b'"content":"', b'"content": "', b'"text":"', b'"text": "'):
        num_texts = block.count(start)
        if num_texts:
            return num_texts - block.count(start + b'"')
    return 0


def _comments(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.startswith(b":")]


def _decode(payload: bytes) -> _Chunk:
    """What is no chunk of OpenAI's shape is passed on unread."""
    try:
        return _CHUNK.decode(payload)
    except msgspec.MsgspecError:
        return _Chunk()
