"""Route and send, on another replica or to another pool while the client was sent nothing of the answer."""

from typing import Protocol

from gateway.http.errors import UpstreamFailed
from gateway.inference.exchange import Exchange
from gateway.inference.refusals import as_failure, as_gateway_error, as_refusal, failure_kind
from gateway.inference.usage_record import UsageRecord
from gateway.services import Services
from gateway.upstream.client import MemberFailed, MemberRefused
from router.errors import RouteError
from router.fleet import Member
from router.policy import Decision, decide

MAX_ROUNDS = 2
"""The second asks the router again: with every replica of a pool down it finds another pool."""
MAX_REPLICAS = 3


class Attempt(Protocol):
    async def run(self, decision: Decision, member: Member) -> None:
        """Send to this member, and its answer to the client. Raises MemberFailed or MemberRefused."""


async def send_somewhere(services: Services, exchange: Exchange, record: UsageRecord, attempt: Attempt) -> None:
    """Returns when the answer is with the client. Raises GatewayError."""
    failure: MemberFailed | None = None
    for _ in range(MAX_ROUNDS):
        try:
            decision = _decide(services, exchange, record)
        except RouteError as error:
            raise as_failure(failure) if failure else as_gateway_error(error, record.accepted.request.model) from None
        for member in decision.members[:MAX_REPLICAS]:
            if failure is not None:
                services.metrics.retries.labels(decision.pool).inc()
            trip = record.note_member(member)
            exchange.end_preparation()
            try:
                return await attempt.run(decision, member)
            except MemberRefused as error:
                services.metrics.upstream_failures.add((decision.pool, "refused"))
                sent_model = decision.adapter or member.model_name
                raise as_refusal(error, sent_model=sent_model, shown_model=record.shown_model) from error
            except MemberFailed as error:
                failure = error
                services.metrics.upstream_failures.add(
                    (decision.pool, failure_kind(error, is_delivered=record.is_delivered))
                )
                if not error.is_reachable:
                    services.registry.note_failure(member.worker_id)
                if record.is_delivered:
                    raise UpstreamFailed("the model's server broke off its answer") from error
                if _is_late(services, record):
                    raise as_failure(error) from error
            finally:
                trip.end()
    assert failure is not None
    raise as_failure(failure) from failure


def _decide(services: Services, exchange: Exchange, record: UsageRecord) -> Decision:
    measured, pool = record.measured, record.pool
    decision = decide(measured.route_request, measured.policy, services.registry.fleet)
    if exchange.is_started and decision.pool != pool:
        # Headers that name the pool are with the client, and they must stay true.
        raise RouteError(f"no replica of {pool} is left")
    record.note_decision(decision)
    return decision


def _is_late(services: Services, record: UsageRecord) -> bool:
    return record.elapsed_ms() / 1000 > services.settings.request_timeout_s
