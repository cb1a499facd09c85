"""Admit: reserve against every limit of tenant, key and end user together, or refuse the request."""

from typing import Any

from gateway.http.errors import LimitReached
from gateway.inference.measure import Measured
from gateway.inference.validate import Accepted
from gateway.limits.reservation import Admission, Reservation
from gateway.services import Services


async def admit(services: Services, accepted: Accepted[Any], measured: Measured) -> Reservation:
    admission = Admission(
        request_id=accepted.request_id,
        tenant_id=accepted.principal.tenant_id,
        tier=accepted.tier,
        tokens=measured.tokens,
        cost_nanousd=measured.dearest_nanousd,
        now=accepted.received_at,
        inner_scopes=accepted.catalog.scopes_of(accepted.principal, accepted.request.user),
    )
    try:
        return await services.limiter.admit(admission)
    except LimitReached as error:
        services.metrics.refusals.labels(str(error.code), accepted.tier.name).inc()
        raise
