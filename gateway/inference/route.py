"""Route and send. While nothing of the answer has reached the client, a failed request is retried on another replica or
in another pool; after that, only on a replica that can continue exactly where the answer broke off."""

import asyncio
import time
from typing import Protocol

import msgspec

from gateway.http.errors import UpstreamFailed
from gateway.inference.exchange import Exchange
from gateway.inference.failures import note_failure
from gateway.inference.overflow import reserve_overflow
from gateway.inference.refusals import as_failure, as_gateway_error, as_refusal
from gateway.inference.usage_record import UsageRecord
from gateway.services import Services
from gateway.upstream.client import MemberFailed, MemberRefused
from protocol.requests import ChatCompletionRequest
from router.balance import order
from router.errors import RouteError, Saturated
from router.fleet import Member, usable_members
from router.policy import Decision, decide

MAX_ROUNDS = 2
"""Each round asks the router. The second finds another pool if every replica of the first pool is down."""
MAX_REPLICAS = 3
MAX_CONTINUATIONS = 8
"""Per answer."""
LOOK_AGAIN_S = 0.1
MAX_PAUSE_S = 2.0


class Attempt(Protocol):
    def num_kept(self, member: Member) -> int:
        """How many tokens of the answer so far this member can continue from; 0 if it would have to start over."""

    async def run(self, decision: Decision, member: Member) -> None:
        """Send the request to this member, and its answer to the client. Raises MemberFailed or MemberRefused."""


async def send_somewhere(services: Services, exchange: Exchange, record: UsageRecord, attempt: Attempt) -> None:
    """Returns when the whole answer was sent to the client. Raises GatewayError."""
    failure: MemberFailed | None = None
    for _ in range(MAX_ROUNDS):
        try:
            decision = _decide(services, exchange, record, has_failed=failure is not None)
            if not await reserve_overflow(services.settings, services.limiter, record):
                services.gates.of(decision.pool).note_spent(time.monotonic())
                # The pool counts as full now, so the router finds another one, or none.
                decision = _decide(services, exchange, record, has_failed=True)
        except RouteError as error:
            raise as_failure(failure) if failure else as_gateway_error(error, record.accepted.request.model) from None
        for member in decision.members[:MAX_REPLICAS]:
            if failure is None:
                services.registry.retry_budget(decision.pool).note_request()
            elif not _may_retry(services, decision):
                raise as_failure(failure) from failure
            else:
                services.metrics.retries.labels(decision.pool).inc()
            exchange.end_preparation()
            failure = await _try(services, record, attempt, decision, member)
            if failure is None:
                return
            if record.is_delivered:
                return await _go_on(services, record, attempt, decision, failure)
            if _is_late(services, record):
                raise as_failure(failure) from failure
    assert failure is not None
    raise as_failure(failure) from failure


async def _try(
    services: Services, record: UsageRecord, attempt: Attempt, decision: Decision, member: Member
) -> MemberFailed | None:
    """How the member failed; None when the whole answer was sent to the client. Raises GatewayError."""
    gate = services.gates.of(decision.pool)
    gate.note_taken(time.monotonic())
    kind: str | None = None
    if record.trace is not None:
        sent_model = decision.adapter or member.model_name
        record.trace.begin_call(member, model=sent_model, request=record.accepted.request)
    record.note_member(member, num_told=attempt.num_kept(member))
    try:
        await attempt.run(decision, member)
    except MemberRefused as error:
        kind = "refused"
        services.metrics.upstream_failures.add((decision.pool, kind))
        sent_model = decision.adapter or member.model_name
        raise as_refusal(error, sent_model=sent_model, shown_model=record.shown_model) from error
    except MemberFailed as error:
        # With hedging a second replica may have been asked, and may be the one that answered.
        failed = record.member or member
        kind = note_failure(services, decision.pool, failed, error, is_delivered=record.is_delivered)
        return error
    finally:
        record.end_trip()
        if record.trace is not None:
            record.trace.end_call(kind)
    gate.note_end(time.monotonic())
    services.registry.note_success((record.member or member).worker_id)
    return None


async def _go_on(
    services: Services, record: UsageRecord, attempt: Attempt, decision: Decision, failure: MemberFailed
) -> None:
    """The client has part of the answer, so only a replica that can continue exactly there will do. The client sees
    only a pause."""
    for _ in range(MAX_CONTINUATIONS):
        member = await _successor(services, record, attempt, decision)
        if member is None or _is_late(services, record) or not _may_retry(services, decision):
            break
        services.metrics.continuations.labels(decision.pool).inc()
        next_failure = await _try(services, record, attempt, decision, member)
        if next_failure is None:
            return
        failure = next_failure
        if failure.is_reachable:
            # The replica is full or cannot serve now. Nothing marks it as failed, so wait before it is asked again.
            await asyncio.sleep(min(failure.retry_after_s or LOOK_AGAIN_S, MAX_PAUSE_S))
    raise UpstreamFailed("the model's server broke off its answer") from failure


async def _successor(services: Services, record: UsageRecord, attempt: Attempt, decision: Decision) -> Member | None:
    """The best replica that can continue the answer; the one that just failed only if there is no other. If there is
    none, wait up to `continue_wait_s` for one to come back."""
    give_up_at = time.monotonic() + services.settings.continue_wait_s
    while True:
        pool = services.registry.fleet.pools.get(decision.pool)
        members = usable_members(pool, adapter=decision.adapter) if pool is not None else ()
        able = tuple([member for member in members if attempt.num_kept(member)])
        found = order(msgspec.structs.replace(pool, members=able), request_id=record.request_id) if pool else ()
        if found:
            others = [each.member for each in found if each.member.worker_id != record.worker_id]
            return others[0] if others else found[0].member
        if time.monotonic() > give_up_at or not any(attempt.num_kept(member) for member in decision.members):
            return None
        await asyncio.sleep(LOOK_AGAIN_S)


def _may_retry(services: Services, decision: Decision) -> bool:
    num_under_way = services.metrics.num_in_flight
    return services.registry.retry_budget(decision.pool).spend(time.monotonic(), num_under_way=num_under_way)


def _decide(services: Services, exchange: Exchange, record: UsageRecord, *, has_failed: bool) -> Decision:
    measured, pool = record.measured, record.pool
    gates, now_s = services.gates, time.monotonic()
    if has_failed:
        # The failures just seen are newer than the last observation of the fleet.
        gates.observe(services.registry.fleet, now_s)
    try:
        decision = decide(measured.route_request, measured.policy, services.registry.fleet, gates.states)
    except Saturated as error:
        gates.of(error.wanted).note_kept_away(now_s)
        raise
    wanted = decision.pools[0]
    if wanted.standing in ("saturated", "shedding") and decision.pool != wanted.pool:
        gates.of(wanted.pool).note_kept_away(now_s)
    if exchange.is_started and decision.pool != pool:
        # The client already has headers that name the pool, and they must stay true.
        raise RouteError(f"no replica of {pool} is left")
    record.note_decision(decision)
    request = record.accepted.request
    if decision.reason in ("complex", "warm") and isinstance(request, ChatCompletionRequest):
        services.conversations.note(record.accepted.principal.tenant_text, request.messages)
    return decision


def _is_late(services: Services, record: UsageRecord) -> bool:
    return record.elapsed_ms() / 1000 > services.settings.request_timeout_s
