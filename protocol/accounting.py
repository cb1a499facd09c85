"""How a worker tells its gateway, inside an SSE stream, what it generated: comment lines that clients ignore.

    : tokens 17,4,9          before the data line whose text these ids made (also for ids whose text is held back)
    : accounting {...}       before `data: [DONE]`: the exact final figures of the request

A worker sends them only when asked with the header `X-Tiergate-Accounting: 1`. The gateway strips them.
An event is the bytes up to and including a blank line; comments stand before their event's data line. A request for
several answers has one stream: the ids are those of whichever answer goes on, the figures are of all together.
"""

from collections.abc import Iterable

import msgspec

ACCOUNTING_HEADER = "x-tiergate-accounting"
TOKENS_PREFIX = b": tokens "
ACCOUNTING_PREFIX = b": accounting "
DONE_EVENT = b"data: [DONE]\n\n"


class Accounting(msgspec.Struct, kw_only=True, frozen=True):
    """A request's final figures at the worker. Non-streamed answers carry it, as JSON, in the accounting header.

    Each prompt counts once, however many answers it got. queue_ms: until the first began; compute_ms: of the longest.
    """

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    queue_ms: float
    compute_ms: float
    worker_id: str
    finish_reason: str


def joint_reason(reasons: Iterable[str]) -> str:
    """Why several answers ended, in one word: `mixed` unless all have the same reason."""
    distinct = set(reasons)
    return distinct.pop() if len(distinct) == 1 else "mixed"


def tokens_comment(token_ids: list[int]) -> bytes:
    return TOKENS_PREFIX + ",".join(map(str, token_ids)).encode() + b"\n"


def accounting_comment(accounting: Accounting) -> bytes:
    return ACCOUNTING_PREFIX + msgspec.json.encode(accounting) + b"\n"


def data_event(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def parse_token_ids(line: bytes) -> list[int]:
    """The ids of one `: tokens` line (without its newline)."""
    return [int(part) for part in line[len(TOKENS_PREFIX) :].split(b",") if part]


def parse_accounting(line: bytes) -> Accounting:
    """The figures of one `: accounting` line (without its newline)."""
    return msgspec.json.decode(line[len(ACCOUNTING_PREFIX) :], type=Accounting)
