"""Limits with their usage at this moment, as `GET /v1/limits` reports them."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from gateway.admin.limits import LimitsAnswer, LimitView, own_limits
from gateway.domain.limits import LimitScope, scope_limits
from gateway.domain.principal import Principal
from gateway.http.errors import GatewayError
from gateway.services import Services

_NOBODY = UUID(int=0)
LABELS = {
    "requests_per_minute": "Requests a minute",
    "tokens_per_minute": "Tokens a minute",
    "concurrency": "Requests at a time",
    "tokens_per_day": "Tokens today",
    "budget": "Dollars this month",
}


@dataclass(frozen=True)
class LimitsNow:
    answer: LimitsAnswer | None
    """None if the limits could not be read; `problem` says why."""
    problem: str = ""

    def of(self, scope: str) -> list[LimitView]:
        """The limits of one scope. For a key or an end user, those that are not set are left out."""
        views = self.answer.limits if self.answer else []
        return [view for view in views if view.scope == scope and (scope == "tenant" or view.max is not None)]


async def limits_now(
    services: Services,
    *,
    tenant_id: UUID,
    tenant_name: str,
    tier: str,
    key_id: UUID = _NOBODY,
    key_limits: Mapping[str, int] | None = None,
    user: str | None = None,
) -> LimitsNow:
    """The limits of the tenant, with those of a key or an end user."""
    own = scope_limits(key_limits)
    scopes = () if own is None else (LimitScope(f"key:{key_id}", own),)
    asker = Principal(tenant_id, tenant_name, key_id, tier, frozenset({"usage"}), limit_scopes=scopes)
    try:
        return LimitsNow(await own_limits(asker, services, user))
    except GatewayError as error:
        return LimitsNow(None, error.message)
