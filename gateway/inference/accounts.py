"""The two accounts of a request, the outbox and the limiter: opened before the answer, closed before its last byte."""

import asyncio

from gateway.http.errors import GatewayError, Unavailable
from gateway.inference.usage_record import UsageRecord
from gateway.limits.limiter import Limiter
from gateway.metering.outbox import Outbox, OutboxFailed, OutboxFull
from gateway.metrics import Metrics
from protocol.usage import UsageStatus

CLOSE_DEADLINE_S = 10.0


class NotDurable(GatewayError):
    """The answer is complete, but its usage is not on disk, so that the client may not be told that all is well."""

    status, code = 500, "usage_not_durable"


class Accounts:
    def __init__(self, outbox: Outbox, limiter: Limiter, metrics: Metrics, record: UsageRecord) -> None:
        self._outbox = outbox
        self._limiter = limiter
        self._metrics = metrics
        self._record = record
        self._is_closed = False

    def open(self) -> None:
        """Raises Unavailable when usage cannot be kept."""
        if self._outbox.failure is not None:
            raise Unavailable("usage cannot be recorded at the moment", retry_after_s=5)
        try:
            self._outbox.open(self._record.event("lost"))
        except OutboxFull as error:
            raise Unavailable("too many requests are under way", retry_after_s=1) from error

    def note_progress(self) -> None:
        record = self._record
        self._outbox.progress(record.asked.request_id, record.completion_tokens, record.cost_nanousd())

    async def close(self, status: UsageStatus) -> None:
        """Durable in the outbox, then settled. Raises NotDurable."""
        if self._is_closed:
            return
        try:
            async with asyncio.timeout(CLOSE_DEADLINE_S):
                await asyncio.shield(self._hand_over(status))
        except (OutboxFailed, TimeoutError) as error:
            self._settle_soon(status)
            raise NotDurable("the usage of this request could not be recorded") from error
        except asyncio.CancelledError:
            self._settle_soon(status)
            raise
        if self._is_refund(status):
            self._settle_soon(status)
        else:
            await self._limiter.settle(
                self._record.reservation, tokens=self._tokens(), cost_nanousd=self._record.cost_nanousd()
            )

    def close_soon(self, status: UsageStatus) -> None:
        """The same by a synchronous hand-off, for `finally`; does nothing once closed."""
        if not self._is_closed:
            self._hand_over(status)
            self._settle_soon(status)

    def _hand_over(self, status: UsageStatus) -> asyncio.Future[None]:
        self._is_closed = True
        record = self._record
        if status != "ok" and not record.is_delivered:
            record.drop_usage()
        labels = (record.pool, record.asked.tier.name)
        self._metrics.tokens.labels("prompt", *labels).inc(record.prompt_tokens)
        self._metrics.tokens.labels("completion", *labels).inc(record.completion_tokens)
        return self._outbox.close(record.event(status))

    def _settle_soon(self, status: UsageStatus) -> None:
        if self._is_refund(status):
            self._limiter.refund_soon(self._record.reservation)
        else:
            self._limiter.settle_soon(
                self._record.reservation, tokens=self._tokens(), cost_nanousd=self._record.cost_nanousd()
            )

    def _is_refund(self, status: UsageStatus) -> bool:
        """We failed before anything was delivered. A client that left has used its request."""
        return status == "error" and not self._record.is_delivered

    def _tokens(self) -> int:
        return self._record.prompt_tokens + self._record.completion_tokens
