"""A whole answer: its figures, and its body as the client gets it."""

import msgspec

from gateway.upstream.client import Answer
from gateway.upstream.streams.foreign import Choice, ForeignUsage
from protocol.accounting import ACCOUNTING_HEADER, Accounting, joint_reason


class Whole(msgspec.Struct, frozen=True):
    """`accounting` only from our own workers; `usage` is what others say."""

    body: bytes
    accounting: Accounting | None = None
    usage: ForeignUsage | None = None
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: ForeignUsage | None = None


_BODY = msgspec.json.Decoder(_Body)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ACCOUNTING = msgspec.json.Decoder(Accounting)


def read_whole(body: bytes, answer: Answer, *, is_own: bool, model: str | None) -> Whole:
    """`model`: the name to put in; None passes the bytes through. Raises msgspec's errors for what is no answer."""
    accounting = answer.header(ACCOUNTING_HEADER.encode()) if is_own else None
    if accounting is not None:
        return Whole(body, accounting=_ACCOUNTING.decode(accounting))
    read = _BODY.decode(body)
    if model is not None:
        body = msgspec.json.encode({**_FIELDS.decode(body), "model": model})
    reasons = [choice.finish_reason for choice in read.choices or () if choice.finish_reason]
    return Whole(body, usage=read.usage, finish_reason=joint_reason(reasons) if reasons else None)
