"""Admit: reserve against every limit of tenant, key and end user together, or refuse the request."""

from typing import Any

from gateway.domain.limits import Limits, LimitScope
from gateway.http.errors import LimitReached
from gateway.inference.measure import BYTES_PER_TOKEN, Measured
from gateway.inference.validate import Accepted
from gateway.limits.reservation import Admission, Reservation
from gateway.services import Services


async def admit(services: Services, accepted: Accepted[Any], measured: Measured) -> Reservation:
    tier, inner_scopes = accepted.tier, accepted.catalog.scopes_of(accepted.principal, accepted.request.user)
    admission = Admission(
        request_id=accepted.request_id,
        tenant_id=accepted.principal.tenant_id,
        tier=tier,
        tokens=_within_limits(measured, tier, inner_scopes) if measured.is_estimate else measured.tokens,
        cost_nanousd=measured.dearest_nanousd,
        now=accepted.received_at,
        inner_scopes=inner_scopes,
    )
    try:
        return await services.limiter.admit(admission)
    except LimitReached as error:
        services.metrics.refusals.labels(str(error.code), tier.name).inc()
        raise


def _within_limits(measured: Measured, tier: Limits, inner_scopes: tuple[LimitScope, ...]) -> int:
    """The tokens to reserve where only an upper bound of the prompt's length is known: all that a limit grants at most,
    if the bound is more but the likely length is not. Otherwise the bound alone would refuse the request for ever."""
    every = (tier, *[scope.limits for scope in inner_scopes])
    limits = [limit for each in every for limit in (each.tokens_per_minute, each.tokens_per_day) if limit is not None]
    likely = measured.prompt_tokens // BYTES_PER_TOKEN + measured.max_completion_tokens
    return min(measured.tokens, max(likely, min(limits, default=measured.tokens)))
