"""A gateway with tenants, prices, and usage of May 2026 in a real ClickHouse, for the console's billing pages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.domain.prices.price_book import RequestPrice
from gateway.metering.store import UsageStore
from protocol.ids import new_request_id
from tests.support.events import make_event
from tests.support.gateways import Gateway, make_settings, running_gateway

MODEL = "meta/m-7b"
MAY = datetime(2026, 5, 10, 12, tzinfo=UTC)
HOSTILE = '<script>alert(1)</script> "acme"'
PRICE = RequestPrice("p", prompt_nanousd=1_000_000, completion_nanousd=2_000_000)
TOKENS = {"prompt_tokens": 100, "cached_prompt_tokens": 0, "completion_tokens": 50}


@dataclass(frozen=True)
class Owner:
    id: str
    key: str
    """The key of the tenant's administrator."""
    reader: str
    """A key with only the scope `usage`."""


@dataclass(frozen=True)
class MoneyScene:
    """Each request was billed at $0.20."""

    gateway: Gateway
    store: UsageStore
    acme: Owner
    other: Owner

    def use(self, owner: Owner, *, num: int = 3, at: datetime = MAY, model: str = MODEL) -> list[str]:
        """Store usage of `num` requests; returns their ids."""
        events = []
        for second in range(num):
            moment = at + timedelta(seconds=second)
            event = make_event(
                new_request_id(moment),
                tenant_id=owner.id,
                model_version=f"{model}@1",
                tier="pro",
                timestamp=moment,
                cost_nanousd=PRICE.cost_nanousd(**TOKENS),
                price_lines=PRICE.lines(**TOKENS),
                **TOKENS,
            )
            events.append(event)
        self.store.insert(events)
        return [event.request_id for event in events]

    async def draft(self, owner: Owner, month: str = "2026-05") -> str:
        return str((await self.gateway.post("/invoices", {"tenant_id": owner.id, "month": month}))["id"])

    async def final(self, owner: Owner, month: str = "2026-05") -> str:
        invoice_id = await self.draft(owner, month)
        reply = await self.gateway.admin.post(f"/invoices/{invoice_id}/finalize")
        assert reply.status_code == 200, reply.text
        return invoice_id

    async def actions(self) -> list[str]:
        """The actions in the audit log."""
        reply = await self.gateway.admin.get("/audit", params={"limit": 1000})
        return [entry["action"] for entry in reply.json()["data"]]


@asynccontextmanager
async def money_scene(folder: Path, redis_url: str, clickhouse_url: str) -> AsyncIterator[MoneyScene]:
    with closing(UsageStore(clickhouse_url)) as store:
        store.prepare()
        async with running_gateway(make_settings(folder, redis_url, clickhouse_url=clickhouse_url)) as gateway:
            await gateway.post("/models", {"id": MODEL, "pool": "small", "context_window": 512})
            await gateway.post("/prices", {"model_id": MODEL, "prompt_nanousd": 100, "completion_nanousd": 400})
            owners = [await _owner(gateway, name) for name in (HOSTILE, "other")]
            yield MoneyScene(gateway, store, *owners)


async def _owner(gateway: Gateway, name: str) -> Owner:
    tenant_id = (await gateway.post("/tenants", {"name": name, "tier": "pro"}))["id"]
    keys = []
    for scopes in (["tenant-admin"], ["usage"]):
        made = await gateway.post("/keys", {"tenant_id": tenant_id, "name": "k", "scopes": scopes})
        keys.append(str(made["key"]))
    return Owner(str(tenant_id), *keys)
