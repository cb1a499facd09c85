"""Streams of our own workers: comments tell the tokens of each event and, at the end, the exact figures."""

import re

import msgspec

from gateway.upstream.streams.events import BrokenStream, EventBuffer
from protocol.accounting import DONE_EVENT, Accounting

# A comment of its own ends with its blank line, one before data with its line.
_TOKENS = re.compile(rb"^: tokens ([0-9,]*)\n\n?", re.MULTILINE)
_ACCOUNTING = re.compile(rb"^: accounting (\{.*\})\n", re.MULTILINE)
_COMMENT = re.compile(rb"^:.*\n\n?", re.MULTILINE)
_ERROR = re.compile(rb'^data: (\{"error".*)\n\n', re.MULTILINE)
_ACCOUNTING_DECODER = msgspec.json.Decoder(Accounting)


class WorkerStream:
    """is_whole: the answer is one JSON body, sent as the only data event."""

    usage = None

    def __init__(self, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self._buffer = EventBuffer()
        self.num_tokens = 0
        self.accounting: Accounting | None = None
        self.has_content = False
        """A data event was seen: from here on another replica cannot take over unseen."""
        self.is_done = False
        self.error: bytes | None = None
        """The body of an error that ended the stream."""
        self.is_waiting = False
        """The worker's last word was that the request still waits for its first step."""

    @property
    def finish_reason(self) -> str | None:
        return self.accounting.finish_reason if self.accounting is not None else None

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets of `chunk`; `[DONE]` and errors are held back. Raises BrokenStream."""
        return self._read(self._buffer.feed(chunk))

    def finish(self) -> bytes:
        """The same for what is left at the connection's end."""
        return self._read(self._buffer.finish())

    def _read(self, block: bytes) -> bytes:
        if not block:
            return b""
        told = _TOKENS.findall(block)
        if told:
            self.num_tokens += sum(ids.count(b",") + 1 for ids in told if ids)
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

    def _read_comments(self, block: bytes) -> bytes:
        found = _ACCOUNTING.search(block)
        if found:
            try:
                self.accounting = _ACCOUNTING_DECODER.decode(found[1])
            except msgspec.MsgspecError as error:
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
