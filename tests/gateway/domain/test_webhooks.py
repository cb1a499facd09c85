"""Webhooks are delivered at least once, signed so that OpenAI's own client verifies them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import openai
import pytest
from aiohttp import web
from sqlalchemy import select, update

from gateway.billing.alerts import BudgetAlerts
from gateway.clock import utc_now
from gateway.database import Sessions, open_sessions
from gateway.domain.catalog import CatalogCache
from gateway.domain.principal import Principal
from gateway.domain.tenants.models import Tenant
from gateway.domain.tenants.service import create_tenant
from gateway.domain.tiers.service import change_tier
from gateway.domain.webhooks.delivery import LEASE, RETRIES, WebhookSender
from gateway.domain.webhooks.models import Delivery, Webhook
from gateway.domain.webhooks.secrets import secret_of
from gateway.domain.webhooks.service import announce, create_webhook, ping, tenants_to_tell
from gateway.http.outbound import Outbound
from gateway.peppers import Peppers
from tests.support.gateways import Gateway, copy_database, eventually, make_settings, running_gateway
from tests.support.limiters import KnownLedger
from tests.support.valkey import ValkeyProcess

PEPPER = "pepper-of-the-tests"
LOOPBACK = (ip_network("127.0.0.0/8"),)
NOW = datetime(2026, 3, 14, tzinfo=UTC)
ADMIN = Principal(uuid4(), "operator", uuid4(), "pro", frozenset({"platform-admin"}))


@dataclass
class Receiver:
    """A tenant's server, which answers what a test tells it."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    """Of the next answers; 204 after them."""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/hook", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    found.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/hook"  # type: ignore[attr-defined]
    yield found
    await runner.cleanup()


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    await asyncio.to_thread(copy_database, tmp_path / "db.sqlite")
    async with open_sessions(f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}") as opened:
        yield opened


class Clock:
    now = NOW

    def __call__(self) -> datetime:
        return self.now


@asynccontextmanager
async def sender_of(sessions: Sessions, clock: Clock, *, holder: str = "a") -> AsyncIterator[WebhookSender]:
    outbound = Outbound(allowed_private=LOOPBACK)
    yield WebhookSender(sessions, outbound, peppers=Peppers(PEPPER), holder=holder, clock=clock)
    await outbound.close()


async def make_hook(sessions: Sessions, url: str, *events: str) -> Webhook:
    tenant = await create_tenant(sessions, None, name=f"t-{uuid4()}", tier="pro", now=NOW)
    return await create_webhook(sessions, ADMIN, tenant_id=tenant.id, url=url, events=events, pepper=PEPPER, now=NOW)


async def states(sessions: Sessions) -> list[Delivery]:
    async with sessions() as session:
        return list(await session.scalars(select(Delivery).order_by(Delivery.id)))


async def test_a_delivery_is_repeated_with_the_same_id_until_it_is_taken(
    sessions: Sessions, receiver: Receiver
) -> None:
    hook, clock = await make_hook(sessions, receiver.url, "ping"), Clock()
    await ping(sessions, ADMIN, hook.id, now=NOW)
    receiver.statuses = [500, 302]
    async with sender_of(sessions, clock) as sender:
        for retry in RETRIES[:2]:
            assert await sender.send_due() == 1
            assert await sender.send_due() == 0
            clock.now += retry
        assert await sender.send_due() == 1
        clock.now += timedelta(days=30)
        assert await sender.send_due() == 0
    assert len(receiver.got) == 3
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert len({headers["webhook-timestamp"] for headers, _ in receiver.got}) == 3
    [state] = await states(sessions)
    assert (state.num_attempts, state.last_status, state.last_error) == (3, 204, None)
    assert state.delivered_at is not None and state.next_attempt_at is None


async def test_after_the_last_retry_it_is_given_up_and_says_why(sessions: Sessions, receiver: Receiver) -> None:
    hook, clock = await make_hook(sessions, "http://10.0.0.1/internal", "ping"), Clock()
    await ping(sessions, ADMIN, hook.id, now=NOW)
    async with sender_of(sessions, clock) as sender:
        for _ in range(len(RETRIES) + 1):
            assert await sender.send_due() == 1
            clock.now += RETRIES[-1]
        assert await sender.send_due() == 0
    [state] = await states(sessions)
    assert (state.delivered_at, state.next_attempt_at) == (None, None)
    assert state.last_error is not None and "not a public one" in state.last_error


async def test_a_tenant_that_was_deleted_before_its_webhooks_went_with_it_is_told_nothing(
    sessions: Sessions, receiver: Receiver
) -> None:
    hook, clock = await make_hook(sessions, receiver.url, "ping", "budget.80"), Clock()
    await ping(sessions, ADMIN, hook.id, now=NOW)
    async with sessions.begin() as session:
        await session.execute(update(Tenant).where(Tenant.id == hook.tenant_id).values(deleted_at=NOW))
    async with sender_of(sessions, clock) as sender:
        assert await sender.send_due() == 0
    assert await tenants_to_tell(sessions, ["budget.80"]) == []
    occasion = {"tenant_id": hook.tenant_id, "occasion": "may", "data": {}, "now": NOW}
    assert await announce(sessions, event="budget.80", **occasion) == 0  # type: ignore[arg-type]
    assert receiver.got == []


async def test_one_process_delivers_and_another_takes_over_when_it_is_gone(
    sessions: Sessions, receiver: Receiver
) -> None:
    hook, clock = await make_hook(sessions, receiver.url, "ping"), Clock()
    async with sender_of(sessions, clock, holder="a") as one, sender_of(sessions, clock, holder="b") as two:
        await ping(sessions, ADMIN, hook.id, now=NOW)
        assert await one.send_due() == 1
        await ping(sessions, ADMIN, hook.id, now=NOW)
        assert await two.send_due() == 0
        clock.now += LEASE + timedelta(seconds=1)
        assert await two.send_due() == 1
    assert len(receiver.got) == 2


async def test_openais_client_verifies_a_delivery_and_refuses_a_changed_or_old_one(
    sessions: Sessions, receiver: Receiver
) -> None:
    hook, clock = await make_hook(sessions, receiver.url, "ping"), Clock()
    clock.now = utc_now()
    await ping(sessions, ADMIN, hook.id, now=NOW)
    async with sender_of(sessions, clock) as sender:
        await sender.send_due()
        secret = secret_of(hook, peppers=Peppers(PEPPER))
        webhooks = openai.OpenAI(api_key="none", webhook_secret=secret).webhooks
        [(headers, body)] = receiver.got
        webhooks.verify_signature(body, headers)
        with pytest.raises(openai.InvalidWebhookSignatureError):
            webhooks.verify_signature(body.replace(b"ping", b"pong"), headers)
        with pytest.raises(openai.InvalidWebhookSignatureError):
            webhooks.verify_signature(
                body, headers | {"webhook-timestamp": str(int(headers["webhook-timestamp"]) - 900)}
            )
        clock.now -= timedelta(hours=1)
        await ping(sessions, ADMIN, hook.id, now=clock.now)
        await sender.send_due()
        with pytest.raises(openai.InvalidWebhookSignatureError, match="too old"):
            webhooks.verify_signature(receiver.got[1][1], receiver.got[1][0])


async def test_a_budget_is_told_once_a_month_at_80_and_at_100_percent(sessions: Sessions) -> None:
    hook, clock, ledger = (
        await make_hook(sessions, "https://example.com/", "budget.80", "budget.100"),
        Clock(),
        KnownLedger(),
    )
    await change_tier(sessions, None, "pro", {"budget_nanousd_per_month": 1000}, now=NOW)
    catalog = CatalogCache(sessions)
    await catalog.reload()
    alerts = BudgetAlerts(sessions, catalog, ledger, holder="a", clock=clock)
    told = []
    for spent in (799, 800, 999, 1000, 5000):
        ledger.nanousd = spent
        told.append(await alerts.check())
    assert told == [0, 1, 0, 1, 0]
    clock.now += timedelta(days=31)
    assert await alerts.check() == 2
    found = await states(sessions)
    assert {state.occasion for state in found} == {
        f"budget.{percent}:{month}" for percent in (80, 100) for month in ("2026-03", "2026-04")
    }
    assert all(str(hook.tenant_id) in state.body for state in found)


async def test_tenants_manage_their_own_webhooks_over_rest(
    tmp_path: Path, valkey: ValkeyProcess, receiver: Receiver
) -> None:
    settings = make_settings(tmp_path, valkey.url, outbound_private_networks="127.0.0.0/8")
    async with running_gateway(settings) as gateway:
        mine, other = [await tenant_admin(gateway) for _ in range(2)]
        made = (await mine.post("/webhooks", json={"url": receiver.url, "events": ["ping"]})).json()
        assert made["secret"].startswith("whsec_")
        for path in ("/secret", "/deliveries"):
            assert (await mine.get(f"/webhooks/{made['id']}{path}")).status_code == 200
            assert (await other.get(f"/webhooks/{made['id']}{path}")).status_code == 404
        assert (await other.get("/webhooks")).json()["data"] == []
        assert (await other.post(f"/webhooks/{made['id']}/ping", json={})).status_code == 404
        assert (await mine.post(f"/webhooks/{made['id']}/ping", json={})).status_code == 202
        await eventually(lambda: receiver.got)
        headers, body = receiver.got[0]
        openai.OpenAI(api_key="none", webhook_secret=made["secret"]).webhooks.verify_signature(body, headers)
        for wrong in (
            {"url": "http://10.0.0.1/", "events": ["ping"]},
            {"url": receiver.url, "events": ["nothing"]},
            {"url": receiver.url, "events": []},
        ):
            assert (await mine.post("/webhooks", json=wrong)).status_code == 400
        stolen = {"url": receiver.url, "events": ["ping"], "tenant_id": str(UUID(int=1))}
        assert (await mine.post("/webhooks", json=stolen)).status_code == 404
        assert (await other.delete(f"/webhooks/{made['id']}")).status_code == 404
        assert (await mine.delete(f"/webhooks/{made['id']}")).status_code == 204
        assert (await mine.get("/webhooks")).json()["data"] == []
        for client in (mine, other):
            await client.aclose()


async def tenant_admin(gateway: Gateway) -> Any:
    key = await gateway.make_key(scopes=("tenant-admin",))
    client = gateway.client(key)
    client.base_url = f"{gateway.origin}/admin/v1"  # type: ignore[assignment]
    return client
