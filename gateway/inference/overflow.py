"""A pool's overflow costs money at an outside provider, so each request that goes there is reserved in the overflow's
own budget, and settled."""

from uuid import UUID, uuid5

from gateway.clock import utc_now
from gateway.domain.catalog import TierTerms
from gateway.http.errors import LimitReached, Unavailable
from gateway.inference.usage_record import UsageRecord
from gateway.limits.limiter import Limiter
from gateway.limits.reservation import Admission
from gateway.settings import GatewaySettings
from protocol.ids import new_request_id

_ACCOUNTS = UUID("6f0b1f0e-6c8a-5c0e-9d55-3a1d0c2f7b11")


def overflow_account(pool: str) -> UUID:
    """The id that an overflow's budget has in the limiter, which knows only tenants. No tenant has this id."""
    return uuid5(_ACCOUNTS, pool)


async def reserve_overflow(settings: GatewaySettings, limiter: Limiter, record: UsageRecord) -> bool:
    """Whether the budget of the chosen pool allows this request; True for pools without a budget."""
    release_overflow(limiter, record)
    of = settings.overflow_pools.get(record.pool)
    if of is None:
        return True
    overflow = settings.pools[of].overflow
    assert overflow is not None
    measured, now = record.measured, utc_now()
    admission = Admission(
        # A new id each time: one request may be reserved, refunded and reserved again.
        request_id=new_request_id(now),
        tenant_id=overflow_account(record.pool),
        tier=_terms(record.pool, overflow.budget_nanousd_per_month),
        tokens=measured.tokens,
        cost_nanousd=record.most_nanousd(),
        now=now,
    )
    try:
        record.overflow = await limiter.admit(admission)
    except (LimitReached, Unavailable):
        # If the ledger cannot tell whether there is money left, assume that there is none.
        return False
    return True


def release_overflow(limiter: Limiter, record: UsageRecord) -> None:
    """Refund the reservation of a request that did not go to the overflow after all."""
    if record.overflow is not None:
        limiter.refund_soon(record.overflow)
        record.overflow = None


def _terms(pool: str, budget_nanousd_per_month: int) -> TierTerms:
    return TierTerms(
        name=pool,
        requests_per_minute=None,
        tokens_per_minute=None,
        concurrency=None,
        tokens_per_day=None,
        budget_nanousd_per_month=budget_nanousd_per_month,
        context_tokens=None,
        default_max_tokens=1,
        max_adapters=None,
        large_share=None,
        priority=0,
        weight=1.0,
        on_saturation="reject",
        complexity_threshold=0.0,
        uncertain_threshold=None,
        ttft_target_ms=None,
        is_hedged=False,
        allowed_pools=None,
        is_best_effort=False,
    )
