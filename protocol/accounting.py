"""How a worker tells its gateway what it generated: comment lines in server-sent events, which clients ignore.

A worker tells it only when the header `X-Tiergate-Accounting` asks for it, and the gateway strips the comments:

    : tokens 17,4,9          before the data line whose text these ids made (also for ids whose text is held back)
    : tokens@2 17,4,9        the same for the third of several answers
    : accounting {...}       before `data: [DONE]`: the exact final figures of the request

An event is the bytes up to and including a blank line; comments stand before their event's data line. Where ids make
several events, the comment stands in the last of them, so that whoever passes events on only up to the last comment
has passed on exactly what the ids that were told have made. That is what a continuation starts from: the body field
`continue_from` holds, for each answer, the ids told by another replica. A stream then has only what follows them, a
whole answer all of it; the figures count the ids of both, and the prompt once.

The header's value says which answers carry the comments:

- `1`: streams, that is, requests with `stream: true`. A whole answer stays plain JSON, with its figures in a response
  header of the same name.
- `events`: streams as with `1`, and a whole answer is sent as an event stream, too. While the answer is made, an event
  of one comment (`: tokens 17,4,9`, blank line) tells all ids since the last such event, at most one every
  TELL_EVERY_S counted from the request's arrival. At the end comes one write:

      : tokens 17,4,9        the rest; no such line when there is no rest
      : accounting {...}
      data: {...}            the bytes of the plain answer

      data: [DONE]

  so that an answer made within TELL_EVERY_S is this one write. Before the first token come `: waiting position=2`
  notices as in a stream. A failure before the first byte has its HTTP status; a later one ends the stream with
  `data: {"error": ...}` and without `[DONE]`. Embeddings are answered as with `1`.

Ids that were told count as delivered, even when the connection is dropped afterwards. The worker counts as discarded
what it generated beyond them, so that both sides add up.
"""

from collections.abc import Iterable

import msgspec

ACCOUNTING_HEADER = "x-tiergate-accounting"
TELL_EVERY_S = 0.2
TOKENS_PREFIX = b": tokens"
ACCOUNTING_PREFIX = b": accounting "
DONE_EVENT = b"data: [DONE]\n\n"


class Accounting(msgspec.Struct, kw_only=True, frozen=True):
    """A request's final figures at the worker.

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


def tokens_comment(token_ids: list[int], *, index: int = 0) -> bytes:
    """index: the answer's."""
    answer = b"@%d" % index if index else b""
    return TOKENS_PREFIX + answer + b" " + ",".join(map(str, token_ids)).encode() + b"\n"


def accounting_comment(accounting: Accounting) -> bytes:
    return ACCOUNTING_PREFIX + msgspec.json.encode(accounting) + b"\n"


def data_event(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def parse_tokens(line: bytes) -> tuple[int, list[int]]:
    """The answer's index and the ids of one `: tokens` line (without its newline)."""
    index, _, ids = line[len(TOKENS_PREFIX) :].partition(b" ")
    return int(index[1:] or 0), [int(part) for part in ids.split(b",") if part]


def parse_accounting(line: bytes) -> Accounting:
    """The figures of one `: accounting` line (without its newline)."""
    return msgspec.json.decode(line[len(ACCOUNTING_PREFIX) :], type=Accounting)
