"""Reading a member's stream: events pass through as bytes, what is meant for the gateway is taken out and counted."""

import re

import msgspec

from protocol.accounting import ACCOUNTING_PREFIX, TOKENS_PREFIX, Accounting, joint_reason, parse_accounting


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class ForeignUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.prompt_tokens_details
        return (details.cached_tokens or 0) if details is not None else 0


_END = b"\n\n"
_DONE = b"data: [DONE]"
_ERROR_START = b'data: {"error"'
MAX_EVENT_BYTES = 16 * 2**20


class BrokenStream(Exception):
    """What came is not a stream that we understand."""


class WorkerStream:
    """A stream of our workers: comments tell the tokens of each event and, at the end, the exact figures."""

    def __init__(self) -> None:
        self._rest = b""
        self.num_tokens = 0
        self.accounting: Accounting | None = None
        self.has_content = False
        """A data event was seen: from here on another replica cannot take over unseen."""
        self.is_done = False
        self.error_event = False

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets of `chunk`; `[DONE]` itself is held back."""
        if self._rest:
            chunk = self._rest + chunk
        end = chunk.rfind(_END)
        if end < 0:
            return self._keep(chunk)
        self._keep(chunk[end + 2 :])
        return b"".join([self._pass_on(event) for event in chunk[:end].split(_END)])

    def _keep(self, rest: bytes) -> bytes:
        if len(rest) > MAX_EVENT_BYTES:
            raise BrokenStream(f"an event of more than {MAX_EVENT_BYTES} bytes")
        self._rest = rest
        return b""

    def _pass_on(self, event: bytes) -> bytes:
        kept = b""
        while event.startswith(b":"):
            line, _, event = event.partition(b"\n")
            if line.startswith(TOKENS_PREFIX):
                self.num_tokens += line.count(b",") + (len(line) > len(TOKENS_PREFIX))
            elif line.startswith(ACCOUNTING_PREFIX):
                self.accounting = _read_accounting(line)
            else:
                kept += line + _END
        if not event:
            return kept
        if event == _DONE:
            self.is_done = True
            return kept
        if event.startswith(_ERROR_START):
            self.error_event = True
        else:
            self.has_content = True
        return kept + event + _END


def _read_accounting(line: bytes) -> Accounting:
    try:
        return parse_accounting(line)
    except msgspec.MsgspecError as error:
        raise BrokenStream(str(error)) from error


class _UsageChunk(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    usage: ForeignUsage | None = None


_USAGE = msgspec.json.Decoder(_UsageChunk)
_FINISH = re.compile(rb'"finish_reason": ?"(\w+)"')


class OpenAIStream(WorkerStream):
    """A foreign server's stream: figures come in a usage chunk; until then every event counts as one token."""

    def __init__(self, *, wants_usage: bool, model_at_member: str, model: str) -> None:
        super().__init__()
        self._wants_usage = wants_usage
        self._renames = [
            (f'"model":{gap}"{model_at_member}"'.encode(), f'"model":{gap}"{model}"'.encode())
            for gap in ("", " ")
            if model_at_member != model
        ]
        self.usage: ForeignUsage | None = None
        self._finish_reasons: list[str] = []

    @property
    def finish_reason(self) -> str | None:
        return joint_reason(self._finish_reasons) if self._finish_reasons else None

    def feed(self, chunk: bytes) -> bytes:
        # Some servers end lines with CR LF; within JSON a CR is always escaped.
        return super().feed(chunk.replace(b"\r", b""))

    def _pass_on(self, event: bytes) -> bytes:
        for theirs, ours in self._renames:
            event = event.replace(theirs, ours)
        if b'"usage"' in event and event.startswith(b"data: {"):
            chunk = _read_usage(event)
            if chunk is not None and chunk.usage is not None:
                self.usage = chunk.usage
                if not chunk.choices and not self._wants_usage:
                    return b""
        finish = _FINISH.search(event)
        if finish:
            self._finish_reasons.append(finish[1].decode())
        elif event.startswith(b"data: {"):
            self.num_tokens += 1
        return super()._pass_on(event)


def _read_usage(event: bytes) -> _UsageChunk | None:
    try:
        return _USAGE.decode(event[len(b"data: ") :])
    except msgspec.MsgspecError:
        return None
