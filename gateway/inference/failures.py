"""Count a member's failure, and report it to the registry or the pool's gate, which keep requests away from it."""

import time

from gateway.inference.refusals import failure_kind
from gateway.services import Services
from gateway.upstream.client import MemberFailed
from router.fleet import Member


def note_failure(services: Services, pool: str, member: Member, error: MemberFailed, *, is_delivered: bool) -> str:
    """Returns the failure's kind, as in metrics."""
    kind = failure_kind(error, is_delivered=is_delivered)
    services.metrics.upstream_failures.add((pool, kind))
    if error.is_fault or not error.is_reachable:
        services.registry.note_failure(member.worker_id, is_fatal=not error.is_reachable)
    elif error.retry_after_s is not None:
        services.gates.of(pool).note_full(member.worker_id, time.monotonic())
    return kind
