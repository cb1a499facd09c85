"""How a worker reports generated tokens to its gateway: comment lines in server-sent events, which clients ignore.

A worker sends them only if the header `X-Tiergate-Accounting` asks for them, and the gateway strips the comments:

    : tokens 17,4,9          before the data line with the text of these ids (also for ids whose text is held back)
    : tokens@2 17,4,9        the same for the third of several answers
    : accounting {...}       before `data: [DONE]`: the exact final figures of the request

An event is the bytes up to and including a blank line; comments come before the data line of their event. If ids yield
several events, the comment is in the last of them. So a gateway that forwards events only up to the last comment has
forwarded exactly the text of the reported ids. A continuation starts from there: the body field `continue_from` has,
for each answer, the ids reported by another replica. A stream then contains only the text after these ids, a whole
answer the full text; the figures count the ids of both replicas, and the prompt once.

The header's value selects the answers with comments:

- `1`: streams, that is, requests with `stream: true`. A whole answer stays plain JSON, with its figures in a response
  header of the same name.
- `events`: streams as with `1`, and a whole answer is sent as an event stream, too. While the answer is generated, an
  event of one comment (`: tokens 17,4,9`, blank line) reports all ids since the last such event, at most once per
  TELL_EVERY_S, counted from the request's arrival. At the end comes one write:

      : tokens 17,4,9        the remaining ids; omitted if there are none
      : accounting {...}
      data: {...}            the bytes of the plain answer

      data: [DONE]

  so an answer generated within TELL_EVERY_S is this one write. Before the first token come `: waiting position=2`
  notices as in a stream. A failure before the first byte has its HTTP status; a later one ends the stream with
  `data: {"error": ...}` and without `[DONE]`. Embeddings are answered as with `1`.

Reported ids count as delivered, even if the connection is dropped afterwards. The worker counts the tokens that it
generated beyond them as discarded, so that both sides add up.
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

    Each prompt counts once, however many answers it gets. queue_ms: until the first answer began; compute_ms: of the
    longest answer.
    """

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    queue_ms: float
    compute_ms: float
    worker_id: str
    finish_reason: str


def joint_reason(reasons: Iterable[str]) -> str:
    """The common finish reason of several answers; `mixed` if they differ."""
    distinct = set(reasons)
    return distinct.pop() if len(distinct) == 1 else "mixed"


def tokens_comment(token_ids: list[int], *, index: int = 0) -> bytes:
    """index: of the answer."""
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
