"""Checks of money: models without a price, budgets that are nearly spent, and webhooks that fail."""

from datetime import datetime, timedelta
from urllib.parse import urlsplit

from sqlalchemy import func, select

from gateway.dashboard.health.troubles import Trouble
from gateway.dashboard.numbers import money
from gateway.domain.prices.price_book import UNPRICED_VERSION
from gateway.domain.tenants.models import Tenant
from gateway.domain.webhooks.models import Delivery, Webhook
from gateway.metering.windows import month_until
from gateway.services import Services

NEAR = 80
"""Percent of a budget."""
GIVEN_UP_LASTS = timedelta(days=2)
MAX_NAMED = 20
_ALL_TENANTS = 100_000


async def look_at_prices(services: Services, now: datetime) -> list[Trouble]:
    catalog = services.catalog.current
    return [
        Trouble(
            "error",
            f"The model {model} has no price: its requests cost nothing.",
            "Give it one, in the past as a correction where its usage shall be billed.",
            "/dashboard/prices",
        )
        for model in sorted(catalog.models)
        if catalog.prices.price_of(model, now=now).version == UNPRICED_VERSION
    ]


async def look_at_budgets(services: Services, now: datetime) -> list[Trouble]:
    """Counts usage that has reached ClickHouse, as recent as the rollups."""
    if services.settings.clickhouse_url is None:
        return []
    page = await services.usage.usage(
        month_until(now), tenant_id=None, group_by="tenant", limit=_ALL_TENANTS, may_lag=True
    )
    spent = {row["tenant_id"]: int(row["cost_nanousd"]) for row in page.rows}
    async with services.sessions() as session:
        tenants = list(await session.scalars(select(Tenant).where(Tenant.deleted_at.is_(None))))
    shares = []
    for tenant in tenants:
        tier = services.catalog.current.tenant_tier(str(tenant.id), tenant.tier)
        budget = None if tier is None else tier.budget_nanousd_per_month
        if budget is not None and budget and spent.get(str(tenant.id), 0) * 100 >= NEAR * budget:
            shares.append((100 * spent[str(tenant.id)] // budget, budget, tenant))
    shares.sort(key=lambda each: -each[0])
    return [
        Trouble(
            "warning" if percent < 100 else "error",
            f"{tenant.name} has spent {percent} % of its {money(budget)} of this month"
            f"{'; its requests are refused' if percent >= 100 else ''}.",
            "A larger budget of the tenant or its tier, or nothing: that is what budgets are for.",
            f"/dashboard/tenants/{tenant.id}",
        )
        for percent, budget, tenant in shares[:MAX_NAMED]
    ]


async def look_at_webhooks(services: Services, now: datetime) -> list[Trouble]:
    """Failed deliveries that are tried again, and those given up that are younger than GIVEN_UP_LASTS."""
    is_failing = (Delivery.delivered_at.is_(None)) & (Delivery.num_attempts > 0)
    is_recent = Delivery.next_attempt_at.is_not(None) | (Delivery.created_at > now - GIVEN_UP_LASTS)
    query = (
        select(Webhook.url, Tenant.name, func.count(), func.max(Delivery.last_error))
        .join(Webhook, Webhook.id == Delivery.webhook_id)
        .join(Tenant, Tenant.id == Webhook.tenant_id)
        .where(is_failing, is_recent)
        .group_by(Webhook.url, Tenant.name)
        .limit(MAX_NAMED)
    )
    async with services.sessions() as session:
        rows = (await session.execute(query)).all()
    return [
        Trouble(
            "warning",
            f"{count} messages to {tenant}'s webhook at {urlsplit(url).hostname} were not taken: "
            f"{error or 'no answer'}.",
            "Tell its owner. It is tried again for some days; GET /admin/v1/webhooks/ID/deliveries tells how it went.",
        )
        for url, tenant, count, error in rows
    ]
