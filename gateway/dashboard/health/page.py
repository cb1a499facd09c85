"""`/dashboard/health`"""

from starlette.requests import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.health.fleet import look_at_gateway, look_at_pools, look_at_replicas
from gateway.dashboard.health.money import look_at_budgets, look_at_prices, look_at_webhooks
from gateway.dashboard.health.pipeline import (
    look_at_clickhouse,
    look_at_limiter,
    look_at_outbox,
    look_at_reconciliation,
)
from gateway.dashboard.health.troubles import Check, find_troubles
from gateway.dashboard.pages import OPERATORS, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.services import Services

CHECKS = (
    Check("This gateway", look_at_gateway),
    Check("Pools", look_at_pools),
    Check("Replicas", look_at_replicas),
    Check("Limits (Valkey)", look_at_limiter),
    Check("Usage on this machine", look_at_outbox),
    Check("ClickHouse and its consumer", look_at_clickhouse),
    Check("Reconciliation", look_at_reconciliation),
    Check("Prices", look_at_prices),
    Check("Budgets", look_at_budgets),
    Check("Webhooks", look_at_webhooks),
)


async def show_health(request: Request, services: Services, visitor: Visitor) -> Response:
    now = utc_now()
    findings = await find_troubles(CHECKS, services, now=now)
    troubles = [(each.subject, trouble) for each in findings for trouble in each.troubles]
    return render(
        "health.html",
        visitor=visitor,
        troubles=sorted(troubles, key=lambda each: each[1].severity),
        well=[each.subject for each in findings if not each.troubles],
        now=now,
    )


PAGES = (Page("/health", show_health, who=OPERATORS, label="Health"),)
