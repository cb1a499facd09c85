"""A whole answer: its figures, and the body for the client."""

from typing import Any

import msgspec

from gateway.upstream.client import Answer
from gateway.upstream.streams.foreign import Choice, ForeignUsage, read_usage
from protocol.accounting import ACCOUNTING_HEADER, Accounting, joint_reason


class WholeAnswer(msgspec.Struct, frozen=True):
    """accounting: figures of our own workers. usage: figures of other servers. num_text_bytes: the size of the answer's
    text, if no completion tokens are reported. is_error: the body is an error although the status is 200."""

    body: bytes
    accounting: Accounting | None = None
    usage: ForeignUsage | None = None
    finish_reason: str | None = None
    num_text_bytes: int = 0
    is_error: bool = False


class _Body(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None


_BODY = msgspec.json.Decoder(_Body)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ACCOUNTING = msgspec.json.Decoder(Accounting)


def read_whole(body: bytes, answer: Answer, *, is_own: bool, model: str | None, most_tokens: int) -> WholeAnswer:
    """model: the model name to put into the body; None passes the bytes through. most_tokens: the most that a foreign
    server's figures may be. Raises one of UNREADABLE, or TypeError, if the body is not an answer."""
    accounting = answer.header(ACCOUNTING_HEADER.encode()) if is_own else None
    if accounting is not None:
        return WholeAnswer(body, accounting=_ACCOUNTING.decode(accounting))
    read = _BODY.decode(body)
    if read.error is not None and not read.choices:
        return WholeAnswer(body, is_error=True)
    if model is not None:
        body = msgspec.json.encode({**_FIELDS.decode(body), "model": model})
    reasons = [choice.reason for choice in read.choices or () if choice.reason]
    reason, usage = joint_reason(reasons) if reasons else None, read_usage(read.usage, most=most_tokens)
    num_text_bytes = 0 if usage is not None and usage.completion_tokens else _num_text_bytes(read.choices or [])
    return WholeAnswer(body, usage=usage, finish_reason=reason, num_text_bytes=num_text_bytes)


def _num_text_bytes(choices: list[Choice]) -> int:
    """The size of everything that the model wrote: texts, reasoning, and tool calls as JSON."""
    size = 0
    for choice in choices:
        written = [choice.text]
        if isinstance(choice.message, dict):
            written += [value for name, value in choice.message.items() if name != "role"]
        size += sum(
            [len(each.encode() if isinstance(each, str) else msgspec.json.encode(each)) for each in written if each]
        )
    return size
