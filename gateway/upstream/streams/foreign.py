"""Streams of other OpenAI-compatible servers. Exact figures come in a usage chunk; until then each event counts as one
token."""

import re
from functools import lru_cache
from typing import Any

import msgspec

from gateway.upstream.streams.events import EventBuffer
from protocol.accounting import joint_reason
from protocol.foreign_json import UNREADABLE

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_REASON = re.compile(rb'"finish_reason"\s*:\s*"')
_FEW_EVENTS = 4
"""Blocks of at most this many events are not worth halving."""
_TEXTS = (
    (b'"content":"', b'"delta"'),
    (b'"content": "', b'"delta"'),
    (b'"text":"', b'"text"'),
    (b'"text": "', b'"text"'),
)
"""How a text begins, and what stands once in each choice."""
_PRIVATE_COMMENTS = (b": tokens", b": accounting", b":tokens", b":accounting")


class ForeignUsage(msgspec.Struct, frozen=True):
    """Usage as a foreign server reports it. completion_tokens None: the server did not report it."""

    prompt_tokens: int
    completion_tokens: int | None = None
    cached_tokens: int = 0


def read_usage(reported: object, *, most: int) -> ForeignUsage | None:
    """The figures of a `usage` field, as far as they are valid counts of at most `most` tokens; None without a count of
    the prompt. Never raises: invalid figures are no reason to lose an answer."""
    if not isinstance(reported, dict):
        return None
    prompt_tokens = _count(reported.get("prompt_tokens"), most)
    details = reported.get("prompt_tokens_details")
    cached_tokens = _count(details.get("cached_tokens"), most) if isinstance(details, dict) else None
    if prompt_tokens is None:
        return None
    return ForeignUsage(prompt_tokens, _count(reported.get("completion_tokens"), most), cached_tokens or 0)


def _count(reported: object, most: int) -> int | None:
    # By the exact type: a bool is an int, too.
    return reported if type(reported) is int and 0 <= reported <= most else None


class Choice(msgspec.Struct):
    """Fields are Any, so that an unexpected value in one does not hide the others."""

    finish_reason: Any = None
    delta: Any = None
    message: Any = None
    text: Any = None

    @property
    def reason(self) -> str | None:
        return self.finish_reason if isinstance(self.finish_reason, str) and self.finish_reason else None

    @property
    def has_text(self) -> bool:
        if not isinstance(self.delta, dict):
            return bool(self.text)
        return any(value for name, value in self.delta.items() if name != "role")

    @property
    def has_token(self) -> bool:
        """Whether the event holds a token. Most servers begin a chat with an event that holds only the role."""
        return self.has_text or (not isinstance(self.delta, dict) and self.text != "")


class _Chunk(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None

    @property
    def is_error(self) -> bool:
        """Whether the event is an error. Some servers send choices with the error; they hold no text."""
        if not self.error and self.object != "error":
            return False
        choices = self.choices or ()
        return any(choice.reason == "error" for choice in choices) or not any(choice.has_text for choice in choices)


_CHUNK = msgspec.json.Decoder(_Chunk)


class ForeignStream:
    """Parsed by the standard. Comments in our own workers' private format are neither trusted nor passed on."""

    accounting = None
    is_waiting = False

    def __init__(self, *, wants_usage: bool, model_at_member: str, model: str, most_tokens: int) -> None:
        """most_tokens: the most that its figures may be."""
        self._most_tokens = most_tokens
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
        """The server's latest figures plus the tokens that came after them. If it reports no completion tokens although
        some came, our own count is used."""
        usage = self._usage
        if usage is None or not self.num_tokens:
            return usage
        num_later = self.num_tokens - self._num_tokens_before_usage
        completion_tokens = usage.completion_tokens + num_later if usage.completion_tokens else self.num_tokens
        return msgspec.structs.replace(usage, completion_tokens=completion_tokens)

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client; `[DONE]` and errors are withheld. Raises BrokenStream."""
        return self._read(self._buffer.feed(chunk))

    def finish(self) -> bytes:
        """As `feed`, for the data that is left at the end of the connection."""
        return self._read(self._buffer.finish())

    def _read(self, block: bytes) -> bytes:
        if not block or self.is_done or self.error is not None:
            return b""
        num_events = block.count(b"\n\n")
        # Exactly one line `data: ...` per event, as nearly all servers write nearly all events.
        is_plain = block.startswith(b"data: ") and block.count(b"\n\ndata: ") == num_events - 1
        if is_plain and block.count(b"\n") == 2 * num_events:
            passed_on = self._read_plain(block)
        else:
            passed_on = self._read_each(block)
        return self._rename(passed_on) if self._rename is not None else passed_on

    def _read_plain(self, block: bytes) -> bytes:
        """Read events of one line each. Few of them hold anything that the gateway needs; bisection finds those."""
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
        is_error = any(line.startswith(b"event:") and line[6:].strip() == b"error" for line in others)
        is_kept = bool(data) and self._note(b"\n".join(data), is_error=is_error)
        lines = [*others, *(b"data: " + value for value in data)] if is_kept else _comments(others)
        return b"\n".join(lines) + b"\n\n" if lines else b""

    def _note(self, payload: bytes, *, is_error: bool) -> bool:
        """Read one event's data. Returns whether the client gets it. is_error: the event's type is `error`."""
        if self.is_done or self.error is not None:
            return False
        if payload.strip() == b"[DONE]":
            self.is_done = True
            return False
        chunk = _decode(payload)
        if is_error or chunk.is_error:
            self.error = payload
            return False
        reasons = [choice.reason for choice in chunk.choices or () if choice.reason]
        self._finish_reasons += reasons
        if chunk.choices and not reasons and any(choice.has_token for choice in chunk.choices):
            self.num_tokens += 1
        usage = read_usage(chunk.usage, most=self._most_tokens)
        if usage is not None:
            self._usage, self._num_tokens_before_usage = usage, self.num_tokens
        if isinstance(chunk.usage, dict) and not chunk.choices and not self._wants_usage:
            return False
        self.has_content = True
        return True


class Rename:
    """Replaces the member's name for the model by the name that clients know."""

    def __init__(self, theirs: str, ours: str) -> None:
        old, self._ours = msgspec.json.encode(theirs), msgspec.json.encode(ours)
        self._forms = [(b'"model"' + sign + old, b'"model"' + sign + self._ours) for sign in (b":", b": ")]
        # JSON may also write a slash as `\/`, so the last part of a name is the same in all forms.
        self._last_part = old.rpartition(b"/")[2]
        self._any_form = re.compile(rb'("model"\s*:\s*)' + re.escape(old).replace(b"/", rb"\\?/"))

    def __call__(self, text: bytes) -> bytes:
        if self._last_part not in text:
            return text
        num_names = text.count(b'"model"')
        for theirs, ours in self._forms:
            parts = text.split(theirs)
            if len(parts) == num_names + 1:
                return ours.join(parts)
        # Nearly all servers use one of the two forms; a regular expression is far slower.
        return self._any_form.sub(lambda found: found[1] + self._ours, text)


_rename = lru_cache(maxsize=1024)(Rename)
"""Cached, so that each pair of names is encoded once."""


def _is_notable(block: bytes, num_events: int) -> bool:
    """Whether the block holds anything but events of one token. Checked with `in` and `count` first, because regular
    expressions search far more slowly."""
    return (
        not _has_one_text_each(block, num_events)
        or (block.count(b'"choices":[{') or block.count(b'"choices": [{')) != num_events
        or b"[DONE]" in block
        or b'"error"' in block
        or b'"role"' in block
        or (b'"usage"' in block and _USAGE.search(block) is not None)
        or (
            block.count(b'"finish_reason":null') != block.count(b'"finish_reason"')
            and _REASON.search(block) is not None
        )
    )


def _has_one_text_each(block: bytes, num_events: int) -> bool:
    """Whether each event holds one choice with a text, in one of the two spellings that nearly all servers use; false
    also if this cannot be told by counting."""
    for start, of_each_choice in _TEXTS:
        num_texts = block.count(start)
        if num_texts:
            return num_texts == num_events == block.count(of_each_choice) and start + b'"' not in block
    return False


def _comments(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.startswith(b":")]


def _decode(payload: bytes) -> _Chunk:
    """An empty chunk for data that is not in OpenAI's format; that data is passed on unread."""
    try:
        return _CHUNK.decode(payload)
    except UNREADABLE:
        return _Chunk()
