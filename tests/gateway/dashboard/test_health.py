"""What the console says is wrong, of a gateway that really is in trouble."""

import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from uuid import UUID

from gateway.clock import utc_now
from gateway.domain.webhooks.models import Delivery
from protocol.counts import AdmissionCount, GatewayCounts
from protocol.ids import new_id
from tests.support.consoles import visit
from tests.support.events import OpenEvent, make_event
from tests.support.gateways import ADMIN_KEY, Gateway, make_settings, running_gateway
from tests.support.money_scenes import MoneyScene

PATH = "/dashboard/health"


async def troubles(gateway: Gateway) -> tuple[dict[str, str], list[str]]:
    """By subject, and what is well."""
    async with visit(gateway, ADMIN_KEY) as operator:
        page = unescape(await operator.page(PATH))
    assert page.count("What to do:") == page.count("<li>\n      <p>")
    wrong, _, well = page.partition("<h2>Well</h2>")
    found = re.findall(r"<b>([^<]+)</b></p>\s*<p>(.*?)</p>", wrong, re.DOTALL)
    return dict(found), re.findall(r"<li>([^<]+)</li>", well)


async def test_a_gateway_without_workers_or_consumer_says_so_and_what_is_well(money: MoneyScene) -> None:
    found, well = await troubles(money.gateway)
    assert found.keys() == {"Pools", "ClickHouse and its consumer"}
    assert "small" in found["Pools"] and "has no replica" in found["Pools"]
    assert "roll-ups up to date yet" in found["ClickHouse and its consumer"]
    assert {"This gateway", "Prices", "Budgets", "Webhooks", "Reconciliation", "Limits (Valkey)"} <= set(well)


async def test_every_trouble_is_named_with_what_to_do(money: MoneyScene) -> None:
    gateway, now = money.gateway, utc_now()
    await gateway.post("/models", {"id": "unpriced-model", "pool": "large", "context_window": 512})
    reply = await gateway.admin.patch(
        f"/tenants/{money.other.id}", json={"limits": {"budget_nanousd_per_month": 1_000_000_000}}
    )
    assert reply.status_code == 200, reply.text
    money.use(money.other, num=4, at=now.replace(day=1, hour=0, minute=0, second=0, microsecond=0))
    hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)
    counts = (AdmissionCount(int(hour.timestamp()), money.acme.id, 7, 7),)
    money.store.insert_counts([GatewayCounts(gateway="g", admissions=counts)])
    hook = {"tenant_id": money.other.id, "url": "https://example.com/a-secret", "events": ["ping"]}
    webhook = await gateway.post("/webhooks", hook)
    async with gateway.services.sessions.begin() as session:
        session.add(_failing(webhook["id"]))
    found, _ = await troubles(gateway)
    assert "unpriced-model" in found["Prices"]
    assert "other has spent 80 %" in found["Budgets"]
    assert "7 requests" in found["Reconciliation"]
    assert "example.com" in found["Webhooks"] and "status 500" in found["Webhooks"]
    assert "a-secret" not in found["Webhooks"]


def _failing(webhook_id: str) -> Delivery:
    now = utc_now()
    return Delivery(
        id=new_id(now),
        webhook_id=UUID(webhook_id),
        occasion="ping:1",
        body="{}",
        created_at=now,
        num_attempts=2,
        next_attempt_at=now + timedelta(hours=1),
        delivered_at=None,
        last_status=500,
        last_error="status 500",
    )


async def test_what_is_away_is_told_and_the_page_still_comes(tmp_path: Path) -> None:
    settings = make_settings(
        tmp_path, "redis://127.0.0.1:9/0", clickhouse_url="http://127.0.0.1:9", outbox_max_bytes=2**20
    )
    async with running_gateway(settings) as gateway:
        old = make_event("waiting", timestamp=utc_now() - timedelta(minutes=10))
        gateway.services.outbox.open(OpenEvent(old))
        await gateway.services.outbox.close(old)
        found, well = await troubles(gateway)
    assert "does not answer" in found["Limits (Valkey)"]
    assert "ClickHouse does not answer" in found["ClickHouse and its consumer"]
    assert "1 events have waited" in found["Usage on this machine"]
    assert "cannot be judged" in found["Reconciliation"] and "cannot be judged" in found["Budgets"]
    assert "Prices" in well


async def test_health_is_the_operators(money: MoneyScene) -> None:
    async with visit(money.gateway, money.acme.key) as owner:
        await owner.page(PATH, status=403)
