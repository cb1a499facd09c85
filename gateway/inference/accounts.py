"""A request's two accounts, one in the outbox and one in the limiter: opened before the answer starts, and closed
before its last byte is sent."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.http.errors import GatewayError, Unavailable
from gateway.inference.usage_record import UsageRecord
from gateway.limits.limiter import Limiter
from gateway.metering.outbox import OpenRequest, OutboxFailed, OutboxFull
from gateway.metrics import Metrics
from gateway.redis_client.resp import Reply
from protocol.usage import PriceLine, UsageEvent, UsageStatus


class NotDurable(GatewayError):
    """The answer is complete, but its usage is not on disk, so the client must not be told that it succeeded."""

    status, code = 500, "usage_not_durable"


@dataclass(frozen=True, slots=True, eq=False)
class _Repeatable:
    """A request under an idempotency key. It costs nothing if this process dies: the client sends it again, and pays
    for the answer it then gets."""

    record: UsageRecord

    @property
    def request_id(self) -> str:
        return self.record.accepted.request_id

    @property
    def completion_tokens(self) -> int:
        return self.record.completion_tokens

    def price_lines(self) -> tuple[PriceLine, ...]:
        return ()

    def event(self, status: UsageStatus) -> UsageEvent:
        return msgspec.structs.replace(self.record.event(status), cost_nanousd=0, price_lines=())


class UsageSink(Protocol):
    """Where usage goes: the outbox, or a wrapper around it."""

    @property
    def failure(self) -> str | None: ...
    def open(self, request: OpenRequest) -> None: ...
    def close(self, event: UsageEvent, *, is_correction: bool = False) -> asyncio.Future[None]: ...


class Accounts:
    def __init__(self, outbox: UsageSink, limiter: Limiter, metrics: Metrics, record: UsageRecord) -> None:
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
            record = self._record
            self._outbox.open(_Repeatable(record) if record.accepted.is_repeatable else record)
        except OutboxFull as error:
            raise Unavailable(f"usage cannot be recorded at the moment: {error}", retry_after_s=1) from error

    async def close(self, status: UsageStatus) -> None:
        """Write the usage durably to the outbox and settle it in the limiter, concurrently: each takes a fraction of a
        millisecond.

        Raises NotDurable if the write fails; the request is then not billed, but still counts against the limits.
        """
        if self._is_closed:
            return
        event = self._end(status)
        written = self._outbox.close(event)
        settled = self._settle_soon(event)
        try:
            await written
        except OutboxFailed as error:
            told = NotDurable("the usage of this request could not be recorded")
            self._correct(told)
            raise told from error
        await self._limiter.settled(settled)

    def close_soon(self, status: UsageStatus) -> None:
        """Like `close`, but a synchronous hand-off, for use in `finally`. Does nothing once closed."""
        if not self._is_closed:
            event = self._end(status)
            self._outbox.close(event)
            self._settle_soon(event)

    def _end(self, status: UsageStatus) -> UsageEvent:
        """Build the final usage event, and count it in metrics and trace."""
        self._is_closed = True
        record = self._record
        if status == "error":
            record.waive()
        elif status == "cancelled" and not record.is_sent:
            record.drop_usage()
        event = record.event(status)
        self._metrics.count_usage(event, model=record.model_id)
        for each in record.measured.scores:
            self._metrics.count_score(each.by, pool=each.pool, tier=event.tier, score=each.score)
        if record.trace is not None:
            record.trace.note_usage(event)
        return event

    def _correct(self, told: NotDurable) -> None:
        """The event that may still reach the disk reports success, but the client is told of a failure: correct it."""
        self._record.note_error(told)
        self._record.waive()
        self._outbox.close(self._record.event("error"), is_correction=True)

    def _settle_soon(self, event: UsageEvent) -> "asyncio.Future[Reply] | None":
        reservation = self._record.reservation
        overflow = self._record.overflow
        if event.status == "error" and not self._record.is_delivered:
            # We failed before anything was delivered. If instead the client left, its request still counts.
            self._limiter.refund_soon(reservation)
            if overflow is not None:
                self._limiter.refund_soon(overflow)
            return None
        tokens = event.prompt_tokens + event.completion_tokens
        if overflow is not None:
            self._limiter.settle_soon(overflow, tokens=tokens, cost_nanousd=event.cost_nanousd)
        return self._limiter.settle_soon(reservation, tokens=tokens, cost_nanousd=event.cost_nanousd)
