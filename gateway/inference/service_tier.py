"""OpenAI's `service_tier`: flex goes last, in the same class as batches; priority needs a tier of the first class."""

from dataclasses import replace

from gateway.domain.catalog import TierTerms
from gateway.http.errors import InvalidRequest
from protocol.requests import SamplingFields, used_service_tier

_FIRST_CLASS, _LAST_CLASS = 0, 3


def terms_of(tier: TierTerms, request: object) -> TierTerms:
    """The tier's terms, adjusted to the request's `service_tier`. Raises InvalidRequest if the tier does not have that
    class."""
    used = used_service_tier(request) if isinstance(request, SamplingFields) else None
    if used == "flex":
        return replace(tier, priority=_LAST_CLASS, is_best_effort=True, is_hedged=False, ttft_target_ms=None)
    if used == "priority" and tier.priority > _FIRST_CLASS:
        raise InvalidRequest(
            f"service_tier: the tier {tier.name} has no priority processing; send auto, default or flex",
            param="service_tier",
            code="unsupported",
        )
    return tier
