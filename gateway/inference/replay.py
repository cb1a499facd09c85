"""Replay: a request that repeats an `Idempotency-Key` gets the first request's answer again.

The first request runs to its end even if its client leaves. A client that lost the connection therefore finds the
answer when it retries, and is billed once.
"""

from gateway.idempotency.kept import KeptAnswer
from gateway.idempotency.store import MAX_BODY_BYTES, AnswerStore, Claim, check_key, fingerprint_of
from gateway.inference.exchange import Exchange
from gateway.inference.validate import Accepted

IDEMPOTENCY_KEY = b"idempotency-key"
REPLAYED = {"idempotent-replayed": "true"}


async def answered_before(answers: AnswerStore, exchange: Exchange, accepted: "Accepted[object]") -> bool:
    """Whether a kept answer was sent. If not, the coming answer will be kept. Raises as `AnswerStore.claim`."""
    key = check_key(exchange.headers[IDEMPOTENCY_KEY])
    fingerprint = fingerprint_of((accepted.path.encode(), exchange.headers.get(b"x-session-id", b""), accepted.body))
    found = await answers.claim(accepted.principal.tenant_text, key, fingerprint)
    if isinstance(found, Claim):
        exchange.copy = AnswerCopy(answers, found)
        return False
    headers = found.headers | REPLAYED
    await exchange.answer(found.status, headers, found.body)
    return True


class AnswerCopy:
    """A copy of everything that the exchange sends, for the store."""

    def __init__(self, answers: AnswerStore, claim: Claim) -> None:
        self._answers = answers
        self._claim = claim
        self._status = 0
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self._status = status
        self._headers = {name: value for name, value in headers.items() if name != "x-request-id"}

    def add(self, part: bytes) -> None:
        self._num_bytes += len(part)
        if self._num_bytes <= MAX_BODY_BYTES:
            self._parts.append(part)
        else:
            self._parts.clear()

    async def keep(self) -> None:
        """Called before the client gets the last byte, since its next request may repeat this one. A failed answer is
        not kept."""
        if not 200 <= self._status < 300:
            return self.drop()
        is_small = self._num_bytes <= MAX_BODY_BYTES
        body = b"".join(self._parts)
        await self._answers.keep(self._claim, KeptAnswer(self._status, self._headers, body) if is_small else None)

    def drop(self) -> None:
        """Free the key. Does nothing once the answer is kept."""
        self._answers.free_soon(self._claim)
