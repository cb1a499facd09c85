"""`GET /v1/limits`: what remains of every limit, quota, budget and credit, and when usage is freed again."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from gateway.billing.spending import unbilled_since
from gateway.clock import utc_now
from gateway.domain.invoices.service import credit_balance
from gateway.domain.limits import LimitScope
from gateway.domain.principal import Principal
from gateway.http.errors import Unavailable
from gateway.limits.reservation import TENANT, Admission, seconds_to_midnight, seconds_to_next_month
from gateway.limits.usage_now import UsageNow
from gateway.metering.windows import Window
from gateway.services import PrincipalDep, Services, ServicesDep

router = APIRouter(tags=["usage"])


class LimitView(BaseModel):
    """`max` and `remaining` are null if there is no such limit."""

    scope: str
    """Who is limited: `tenant`, `key:ID` or `user:ID`."""
    name: Literal["requests_per_minute", "tokens_per_minute", "concurrency", "tokens_per_day", "budget"]
    """The same as the `code` of a 429."""
    unit: Literal["requests", "tokens", "nanousd"]
    max: int | None
    used: int | None
    """Includes what is reserved for requests under way."""
    remaining: int | None
    frees_at: datetime | None
    """When some of the usage is freed, if known. Unknown for `concurrency`: requests end when they end."""
    resets_at: datetime | None
    """When all of the usage is freed, provided that nothing more is sent."""


class CreditView(BaseModel):
    balance_nanousd: int
    unbilled_nanousd: int | None
    """Usage that no final invoice has billed, before tax; null while usage cannot be read."""


class LimitsAnswer(BaseModel):
    tier: str
    limiter: Literal["shared", "local"]
    """`local`: Redis is away, and the figures are those of the answering gateway alone."""
    limits: list[LimitView]
    context_tokens: int | None
    """The most tokens of a prompt; each model's own limit applies as well."""
    default_max_tokens: int
    """The most tokens of an answer whose request sets no limit."""
    credit: CreditView | None
    """Null for a key that may not see the tenant's spending."""


@router.get("/v1/limits")
async def own_limits(
    principal: PrincipalDep,
    services: ServicesDep,
    user: Annotated[str | None, Query(max_length=512, description="an end user whose limits are shown as well")] = None,
) -> LimitsAnswer:
    """Show the tenant's limits and, where they are set, those of the calling key and of the end user.

    Only keys with the scope `usage` or an admin scope see what the tenant has spent.
    """
    catalog, now = services.catalog.current, utc_now()
    tier = catalog.tier_of(principal)
    asked = Admission(
        request_id="",
        tenant_id=principal.tenant_id,
        tier=tier,
        tokens=0,
        cost_nanousd=0,
        now=now,
        inner_scopes=catalog.scopes_of(principal, user),
    )
    usage = await services.limiter.usage_now(asked)
    views = [view for scope, used in zip(asked.scopes(), usage, strict=True) for view in _views(scope, used, now)]
    if not principal.sees_spending:
        views = [view for view in views if (view.scope, view.name) != (TENANT, "budget")]
    return LimitsAnswer(
        tier=tier.name,
        limiter="local" if usage[0].is_local else "shared",
        limits=views,
        context_tokens=tier.context_tokens,
        default_max_tokens=tier.default_max_tokens,
        credit=await _credit(services, principal, now) if principal.sees_spending else None,
    )


async def _credit(services: Services, principal: Principal, now: datetime) -> CreditView:
    async with services.sessions() as session:
        balance = await credit_balance(session, principal.tenant_id)
        since = await unbilled_since(session, principal.tenant_id)
    try:
        window = Window(since, now + timedelta(seconds=1))
        totals = await services.usage.totals(window, tenant_id=principal.tenant_text)
        unbilled = int(totals["cost_nanousd"])
    except Unavailable:
        unbilled = None
    return CreditView(balance_nanousd=balance, unbilled_nanousd=unbilled)


def _views(scope: LimitScope, used: UsageNow, now: datetime) -> list[LimitView]:
    limits = scope.limits
    midnight = now + timedelta(seconds=seconds_to_midnight(now))
    next_month = now + timedelta(seconds=seconds_to_next_month(now))
    first, last = (
        (now + timedelta(seconds=seconds)) if used.num_requests else None for seconds in (used.frees_s, used.reset_s)
    )

    def view(
        name: str, unit: str, most: int | None, spent: int | None, frees_at: datetime | None, resets_at: datetime | None
    ) -> LimitView:
        return LimitView.model_validate(
            {
                "scope": scope.name,
                "name": name,
                "unit": unit,
                "max": most,
                "used": spent,
                "remaining": None if most is None or spent is None else max(0, most - spent),
                "frees_at": frees_at,
                "resets_at": resets_at,
            }
        )

    return [
        view("requests_per_minute", "requests", limits.requests_per_minute, used.num_requests, first, last),
        view("tokens_per_minute", "tokens", limits.tokens_per_minute, used.num_tokens, first, last),
        view("concurrency", "requests", limits.concurrency, used.num_live, None, None),
        view("tokens_per_day", "tokens", limits.tokens_per_day, used.tokens_today, midnight, midnight),
        view("budget", "nanousd", limits.budget_nanousd_per_month, used.spent_this_month, next_month, next_month),
    ]
