"""The lines of the output and error files, and the exceptions of a line that has no result yet."""

from dataclasses import dataclass
from uuid import UUID

import msgspec

from protocol.usage import UsageEvent

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line's result. `event` bills it and must be closed once the result is durable."""

    is_ok: bool
    content: bytes
    event: UsageEvent | None = None


class Later(Exception):
    """The line cannot run now. `failure`: the result to record if servers keep failing."""

    def __init__(self, retry_after_s: float, failure: Outcome | None = None) -> None:
        super().__init__(f"in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s
        self.failure = failure


class KeyGone(Exception):
    """The API key on whose behalf the batch runs is no longer accepted."""


def answered(
    batch_id: UUID, line: int, custom_id: str, *, status: int, request_id: str, body: bytes, event: UsageEvent | None
) -> Outcome:
    """body: JSON, an answer or an error in OpenAI's format."""
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    content = {"id": _id(batch_id, line), "custom_id": custom_id, "response": response, "error": None}
    return Outcome(status == 200, _encode(content), event)


def never_run(batch_id: UUID, line: int, custom_id: str | None, *, code: str, message: str) -> Outcome:
    error = {"code": code, "message": message, "line": line}
    content = {"id": _id(batch_id, line), "custom_id": custom_id, "response": None, "error": error}
    return Outcome(False, _encode(content))


def _id(batch_id: UUID, line: int) -> str:
    return f"batch_req_{batch_id.hex}_{line}"
