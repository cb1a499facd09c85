"""Streams of our own workers: comments report the token ids of each event and, at the end, the exact figures."""

import re

import msgspec

from gateway.upstream.streams.events import MAX_EVENT_BYTES, BrokenStream, EventBuffer
from protocol.accounting import DONE_EVENT, Accounting
from protocol.foreign_json import UNREADABLE

# A stand-alone comment ends with its blank line; a comment before data ends with its line.
_TOKENS = re.compile(rb"^: tokens(?:@([0-9]+))? ([0-9,]*)\n\n?", re.MULTILINE)
_ACCOUNTING = re.compile(rb"^: accounting (\{.*\})\n", re.MULTILINE)
_COMMENT = re.compile(rb"^:.*\n\n?", re.MULTILINE)
_ERROR = re.compile(rb'^data: (\{"error".*)\n\n', re.MULTILINE)
_ACCOUNTING_DECODER = msgspec.json.Decoder(Accounting)


class ToldIds:
    """The token ids that workers reported for each answer. Kept as text, since they are hardly ever needed."""

    def __init__(self) -> None:
        self._by_answer: dict[bytes, list[bytes]] = {}
        self.num_tokens = 0

    def add(self, answer: bytes, ids: bytes) -> None:
        """answer: the answer's index in digits; empty for the first answer."""
        if ids:
            self._by_answer.setdefault(answer, []).append(ids)
            self.num_tokens += ids.count(b",") + 1

    def of_answers(self, num_answers: int) -> list[list[int]]:
        written = [self._by_answer.get(b"%d" % i if i else b"", []) for i in range(num_answers)]
        return [[int(each) for each in b",".join(parts).split(b",") if each] for parts in written]


class WorkerStream:
    """is_whole: the answer is one JSON body, sent as the only data event. told: the ids that another worker reported
    for the part of the answer that it sent.

    Events are passed on only once ids were reported for them, so that another worker can continue exactly after them.
    """

    usage = None

    def __init__(self, *, is_whole: bool = False, told: ToldIds | None = None) -> None:
        self._is_whole = is_whole
        self._buffer = EventBuffer()
        self._held = b""
        self.told = told or ToldIds()
        self.accounting: Accounting | None = None
        self.has_content = False
        """A data event was seen, so another replica can no longer start the answer over unnoticed."""
        self.is_done = False
        self.error: bytes | None = None
        """The JSON body of an error that ended the stream."""
        self.is_waiting = False
        """The worker has last reported that the request is still waiting for its first step."""

    @property
    def num_tokens(self) -> int:
        return self.told.num_tokens

    @property
    def finish_reason(self) -> str | None:
        return self.accounting.finish_reason if self.accounting is not None else None

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client; `[DONE]` and errors are withheld. Raises BrokenStream."""
        return self._read(self._buffer.feed(chunk))

    def finish(self) -> bytes:
        """As `feed`, for the data that is left at the end of the connection."""
        return self._read(self._buffer.finish())

    def _read(self, block: bytes) -> bytes:
        if not block:
            return b""
        if not self._held and (data := self._read_one(block)):
            return data
        if not self._is_whole:
            block = self._vouched_for(block)
        told = _TOKENS.findall(block)
        if told:
            for answer, ids in told:
                self.told.add(answer, ids)
            self.is_waiting = False
            block = _TOKENS.sub(b"", block)
        if block.endswith(DONE_EVENT):
            self.is_done = True
            block = block[: -len(DONE_EVENT)]
        if b": " in block[:2] or b"\n: " in block:
            block = self._read_comments(block)
        if b'{"error"' in block:
            block = self._read_error(block)
        if block.startswith(b"data: ") or b"\ndata: " in block:
            self.has_content = True
        return block

    def _read_one(self, block: bytes) -> bytes:
        """Fast path for the usual block: ids of the first answer and one event with its text. b"" for other blocks."""
        if not block.startswith(b": tokens "):
            return b""
        end = block.index(b"\n")
        data = block[end + 1 :]
        if data.count(b"\n") != 2 or not data.startswith(b"data: {") or data.startswith(b'data: {"error"'):
            return b""
        self.told.add(b"", block[9:end])
        self.is_waiting = False
        self.has_content = True
        return data

    def _vouched_for(self, block: bytes) -> bytes:
        """The block up to the last event with a comment of the worker, which is nearly always the whole block. The rest
        is held."""
        if self._held:
            block, self._held = self._held + block, b""
        before_last = block.rfind(b"\n\n", 0, -2)
        last = before_last + 2 if before_last >= 0 else 0
        if block.startswith(b":", last) or block.endswith(DONE_EVENT):
            return block
        comment = block.rfind(b"\n\n:", 0, last)
        if comment >= 0:
            end = block.index(b"\n\n", comment + 2) + 2
        else:
            end = block.index(b"\n\n") + 2 if block.startswith(b":") else 0
        if block.startswith(b'data: {"error"', last):
            return block[:end] + block[last:]
        self._held = block[end:]
        if len(self._held) > MAX_EVENT_BYTES:
            raise BrokenStream(f"more than {MAX_EVENT_BYTES} bytes without a token told")
        return block[:end]

    def _read_comments(self, block: bytes) -> bytes:
        found = _ACCOUNTING.search(block)
        if found:
            try:
                self.accounting = _ACCOUNTING_DECODER.decode(found[1])
            except UNREADABLE as error:
                raise BrokenStream(str(error)) from error
            block = _ACCOUNTING.sub(b"", block)
        if b": waiting position=" in block:
            self.is_waiting = not block.rstrip().endswith(b"position=0")
        return _COMMENT.sub(b"", block) if self._is_whole else block

    def _read_error(self, block: bytes) -> bytes:
        found = _ERROR.search(block)
        if found:
            self.error = found[1]
            block = block[: found.start()]
        return block
