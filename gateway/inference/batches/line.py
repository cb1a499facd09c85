"""A batch line runs like any other request: it is measured, admitted, routed, sent and settled.

Only its usage event differs: it is held until the line's result is durable. A line without a result is not billed, so
a line that is run again after a crash is billed once.
"""

import asyncio
import time
from dataclasses import replace
from typing import Any

import msgspec

from gateway.batches.lines import BatchLine
from gateway.batches.results import KeyGone, Later, Outcome, answered
from gateway.clock import utc_now
from gateway.domain.batches.models import Batch
from gateway.domain.batches.service import batch_name
from gateway.domain.catalog import TierTerms
from gateway.http.answer import WHOLE_BODY
from gateway.http.errors import Forbidden, LimitReached, Saturated, Unauthenticated, Unavailable
from gateway.http.rendering import error_body, error_status
from gateway.inference.embeddings.handler import EMBEDDING, EMBEDDINGS_PATH
from gateway.inference.exchange import Exchange
from gateway.inference.handler import COMPLETION, carry_out
from gateway.inference.operation import Operation
from gateway.inference.service_tier import terms_of
from gateway.inference.validate import MAX_CLIENT_ID_CHARS, Accepted
from gateway.metering.outbox import OpenRequest, Outbox
from gateway.services import Services
from protocol.ids import new_request_id
from protocol.usage import PriceLine, UsageEvent, UsageStatus
from router.fleet import Pool
from router.replicas import is_sane

PRIORITY = 3
IDLE_SHARE, LIVE_SHARE = 0.5, 1 / 64
"""Shares of a replica's slots; batches wait while more slots are busy. LIVE_SHARE applies where this process had live
requests in the pool within LIVE_S, because the first token of a live request waits for everything already running."""
LIVE_S = 5.0
AT_A_FOREIGN_MEMBER = 4
"""How many requests a server takes if it does not report its load."""
SUSPENDED_PAUSE_S = 30.0
FAILED_PAUSE_S = 2.0


class LinesHere:
    """The `LineRunner` that runs batch lines in this process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._live_at_s: dict[str, float] = {}
        """By pool: when one of its members last had a request that was not a batch line."""
        self._looked_at_s: dict[str, float] = {}

    def has_room(self, model: str, *, num_own: int) -> bool:
        services = self._services
        if services.is_draining():
            return False
        fleet = services.registry.fleet
        named = fleet.pool_serving(model)
        pools = [named] if named is not None else [each for each in fleet.pools.values() if each.overflow_of is None]
        return any(self._room(pool, num_own) > num_own for pool in pools)

    def _room(self, pool: Pool, num_own: int) -> float:
        """How many batch requests the pool takes now, given the other requests there."""
        state = self._services.gates.states.get(pool.name)
        if state is not None and (state.is_saturated or state.is_shedding):
            return 0
        share = self._share(pool, num_own)
        room, num_there = 0.0, 0
        for replica in pool.replicas.usable:
            member, load = replica.member, replica.member.load
            if load is None or not is_sane(member):
                room += AT_A_FOREIGN_MEMBER
                num_there += member.in_flight.num_requests
            else:
                room += max(1, load.max_num_seqs * share)
                num_there += max(load.num_running + load.num_waiting, member.in_flight.num_requests)
        return room - max(0, num_there - num_own)

    def _share(self, pool: Pool, num_own: int) -> float:
        now_s = time.monotonic()
        # After a pause without looking it is unknown whether there were live requests, so assume that there were.
        is_blind = now_s - self._looked_at_s.get(pool.name, float("-inf")) > LIVE_S
        self._looked_at_s[pool.name] = now_s
        if is_blind or sum([each.member.in_flight.num_requests for each in pool.replicas.usable]) > num_own:
            self._live_at_s[pool.name] = now_s
        return LIVE_SHARE if now_s - self._live_at_s[pool.name] < LIVE_S else IDLE_SHARE

    async def run(self, batch: Batch, key_prefix: str, line: int, request: BatchLine) -> Outcome:
        """Run one line and return its outcome. Raises Later and KeyGone."""
        services, body, usage = self._services, bytes(request.body), _HeldUsage(self._services.outbox)
        operation: Operation[Any] = EMBEDDING if batch.endpoint == EMBEDDINGS_PATH else COMPLETION
        answer = _Answer()
        exchange = Exchange({"path": batch.endpoint, "headers": ()}, _no_body, answer.take)
        exchange.usage = usage
        now = utc_now()
        request_id = new_request_id(now)
        services.metrics.num_in_flight += 1
        try:
            principal = await services.keyring.principal_of(key_prefix)
            catalog = services.catalog.current
            tier = catalog.tier_of(principal)
            exchange.preparation = services.overload.begin(PRIORITY)
            asked = operation.validate(exchange, body)
            terms = terms_of(batch_terms(tier), asked)
            accepted = Accepted(
                request_id=request_id,
                client_request_id=request.custom_id if len(request.custom_id) <= MAX_CLIENT_ID_CHARS else None,
                path=batch.endpoint,
                principal=principal,
                tier=terms,
                catalog=catalog,
                body=body,
                request=asked,
                received_at=now,
                received_monotonic_s=time.monotonic(),
                authenticate_ms=0.0,
                batch_id=batch_name(batch.id),
            )
            measured = await operation.measure(accepted, services)
            accepted = msgspec.structs.replace(accepted, tier=with_room(terms, tier, measured.tokens))
            await carry_out(services, exchange, accepted, measured, operation)
            return answered(
                batch.id,
                line,
                request.custom_id,
                status=exchange.status,
                request_id=request_id,
                body=answer.body,
                event=usage.take(),
            )
        except Unauthenticated as error:
            raise KeyGone from error
        except Exception as error:
            return _outcome_of(error, batch, line, request, request_id=request_id)
        finally:
            usage.give_up()
            exchange.end_preparation()
            services.metrics.num_in_flight -= 1
            services.metrics.count_request(exchange.status or 499, exchange.served_by)


def batch_terms(tier: TierTerms) -> TierTerms:
    """A batch yields to all other requests, and leaves its own tenant half of the per-minute and concurrency limits."""
    return replace(
        tier,
        priority=PRIORITY,
        is_best_effort=True,
        is_hedged=False,
        requests_per_minute=_half(tier.requests_per_minute),
        tokens_per_minute=_half(tier.tokens_per_minute),
        concurrency=_half(tier.concurrency),
    )


def with_room(terms: TierTerms, tier: TierTerms, num_tokens: int) -> TierTerms:
    """A single request may exceed half of the tokens per minute, as long as it fits into the whole limit."""
    if terms.tokens_per_minute is None or tier.tokens_per_minute is None or num_tokens <= terms.tokens_per_minute:
        return terms
    return replace(terms, tokens_per_minute=min(num_tokens, tier.tokens_per_minute))


def _half(limit: int | None) -> int | None:
    return None if limit is None else -(-limit // 2)


def _outcome_of(error: Exception, batch: Batch, line: int, request: BatchLine, *, request_id: str) -> Outcome:
    """The line's result. Raises Later if another try may succeed."""
    if isinstance(error, Forbidden) and error.code == "tenant_suspended":
        raise Later(SUSPENDED_PAUSE_S) from error
    if isinstance(error, Saturated | Unavailable) or (isinstance(error, LimitReached) and error.can_pass):
        raise Later(error.retry_after_s) from error
    status, body = error_status(error), error_body(error)
    failure = answered(batch.id, line, request.custom_id, status=status, request_id=request_id, body=body, event=None)
    if status >= 500:
        raise Later(FAILED_PAUSE_S, failure) from error
    return failure


class _Answer:
    """Collects the answer that a client would be sent."""

    body = b""

    async def take(self, message: Any) -> None:
        self.body = message.get(WHOLE_BODY, self.body)


class _HeldUsage:
    """Passes usage on to the outbox, except for a successful answer's event, which is held until the line's result is
    durable."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._held: UsageEvent | None = None

    @property
    def failure(self) -> str | None:
        return self._outbox.failure

    def open(self, request: OpenRequest) -> None:
        self._outbox.open(_Unbilled(request))

    def close(self, event: UsageEvent, *, is_correction: bool = False) -> "asyncio.Future[None]":
        if event.status != "ok":
            return self._outbox.close(_free(event), is_correction=is_correction)
        self._held = event
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def take(self) -> UsageEvent | None:
        event, self._held = self._held, None
        return event

    def give_up(self) -> None:
        """A held event that was not taken has no result. Close it as cancelled, at no cost."""
        event = self.take()
        if event is not None:
            self._outbox.close(_free(msgspec.structs.replace(event, status="cancelled")))


class _Unbilled:
    """A request under way that is billed nothing if this process dies."""

    def __init__(self, request: OpenRequest) -> None:
        self._request = request

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def completion_tokens(self) -> int:
        return self._request.completion_tokens

    def price_lines(self) -> tuple[PriceLine, ...]:
        return ()

    def event(self, status: UsageStatus) -> UsageEvent:
        return _free(self._request.event(status))


def _free(event: UsageEvent) -> UsageEvent:
    return msgspec.structs.replace(event, cost_nanousd=0, price_lines=())


async def _no_body() -> Any:
    raise AssertionError("a line of a batch has no body to receive")
