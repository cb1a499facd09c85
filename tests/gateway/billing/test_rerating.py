from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.billing.rerating import Rerating
from gateway.domain.prices.price_book import PriceBook, PriceTerms, RequestPrice
from gateway.metering.queries import UsageQueries
from gateway.metering.store import UsageStore
from gateway.metering.windows import Window
from protocol.usage import UsageEvent
from tests.support.events import make_event
from tests.support.gateways import Gateway

START = datetime(2026, 3, 1, tzinfo=UTC)
MARCH = Window(START, START + timedelta(days=31))
OLD = RequestPrice("old", prompt_nanousd=10, completion_nanousd=20)
TOKENS = {"prompt_tokens": 100, "cached_prompt_tokens": 0, "completion_tokens": 50}
BOOK = PriceBook([PriceTerms("new", "m", 7, 7, 20, 0, START + timedelta(days=1))])


def priced(request_id: str, **changes: Any) -> UsageEvent:
    fields = {
        **TOKENS,
        "model_version": "m@1",
        "cost_nanousd": OLD.cost_nanousd(**TOKENS),
        "price_lines": OLD.lines(**TOKENS),
        "price_version": "old",
        "timestamp": START + timedelta(days=2),
    }
    return make_event(request_id, **(fields | changes))


async def pages(queries: UsageQueries, url: str, *, is_applied: bool, tenant_id: str | None = None) -> dict[str, int]:
    sums = {"num_events": 0, "num_changed": 0, "old_nanousd": 0, "new_nanousd": 0, "pages": 0}
    after = None
    while True:
        rerating = Rerating(queries, url, page=2)
        page = await rerating.rerate(BOOK, MARCH, tenant_id=tenant_id, after=after, is_applied=is_applied)
        for name in sums.keys() - {"pages"}:
            sums[name] += getattr(page, name)
        assert sum(page.by_tenant.values()) == page.new_nanousd - page.old_nanousd
        sums["pages"] += 1
        after = page.next
        if after is None:
            return sums


async def cost(queries: UsageQueries) -> int:
    return int((await queries.totals(MARCH, tenant_id=None))["cost_nanousd"])


async def test_usage_is_priced_anew_only_when_asked_and_once(
    queries: UsageQueries, store: UsageStore, clickhouse_url: str
) -> None:
    told_as_failed = {"status": "error", "cost_nanousd": 0, "price_lines": ()}
    store.insert([priced(f"r{i}", tenant_id=f"t{i % 2}") for i in range(5)])
    store.insert(
        [priced("free", **told_as_failed), priced("other", model_version="n@1", price_lines=(), cost_nanousd=0)]
    )
    shown = await pages(queries, clickhouse_url, is_applied=False)
    assert shown == {"num_events": 7, "num_changed": 5, "old_nanousd": 10_000, "new_nanousd": 8500, "pages": 4}
    assert await cost(queries) == 10_000
    assert await pages(queries, clickhouse_url, is_applied=True) == shown
    assert await cost(queries) == 8500
    assert (await pages(queries, clickhouse_url, is_applied=True))["num_changed"] == 0
    row = (await queries.usage(MARCH, tenant_id="t1", group_by="request")).rows[0]
    assert row["price_version"] == "new"
    assert [line["amount_nanousd"] for line in row["price_lines"]] == [700, 1000]
    assert row["steps_ms"]


async def test_a_late_copy_changes_nothing_but_a_late_failure_is_not_billed(
    queries: UsageQueries, store: UsageStore, clickhouse_url: str
) -> None:
    store.insert([priced("r1"), priced("r2")])
    await pages(queries, clickhouse_url, is_applied=True)
    store.insert([priced("r1"), priced("r2", status="error", cost_nanousd=0, price_lines=())])
    assert await cost(queries) == 1700


async def test_a_correction_is_backdated_shown_and_applied_over_rest(gateway: Gateway, store: UsageStore) -> None:
    await gateway.post("/models", {"id": "m", "pool": "small", "context_window": 512})
    store.insert([priced("r1"), priced("r2", tier="enterprise")])
    price = {"model_id": "m", "prompt_nanousd": 7, "completion_nanousd": 20, "valid_from": START.isoformat()}
    assert (await gateway.admin.post("/prices", json=price)).status_code == 400
    await gateway.post("/prices", price | {"is_correction": True})
    discount = {"tier": "enterprise", "basis_points": 1000, "valid_from": START.isoformat(), "is_correction": True}
    await gateway.post("/prices/discounts", discount)
    question = {"start": MARCH.start.isoformat(), "end": MARCH.end.isoformat()}
    shown = (await gateway.admin.post("/prices/rerate", json=question)).json()
    # Both events are of the tier enterprise, as make_event has it.
    assert (shown["old_nanousd"], shown["new_nanousd"]) == (4000, 3060)
    assert shown["differences"] == [{"tenant_id": "acme", "model": "m", "nanousd": -940}]
    applied = (await gateway.admin.post("/prices/rerate", json=question | {"apply": True})).json()
    assert applied["num_changed"] == 2
    assert (await gateway.admin.post("/prices/rerate", json=question)).json()["old_nanousd"] == 3060
    [entry] = [
        entry for entry in (await gateway.admin.get("/audit")).json()["data"] if entry["action"] == "price.rerate"
    ]
    assert entry["detail"]["difference_nanousd"] == -940


async def test_surcharges_and_discounts_are_versions_that_can_be_deleted_until_they_hold(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m", "pool": "small", "context_window": 512})
    adapter = await gateway.post("/adapters", {"name": "pirate", "variants": {"m": "p"}})
    for path, draft in (
        ("/prices/surcharges", {"model_id": "m", "adapter_id": adapter["id"], "token_nanousd": 5}),
        ("/prices/surcharges", {"model_id": "m", "token_nanousd": 3}),
        ("/prices/discounts", {"tier": "pro", "basis_points": 10_000}),
    ):
        made = await gateway.post(path, draft)
        assert (await gateway.admin.delete(f"{path}/{made['version']}")).status_code == 409
        later = await gateway.post(path, {**draft, "valid_from": "2099-01-01T00:00:00Z"})
        assert (await gateway.admin.delete(f"{path}/{later['version']}")).status_code == 204
        listed = [each["version"] for each in (await gateway.admin.get(path)).json()["data"]]
        assert made["version"] in listed and later["version"] not in listed
    for path, draft, param in (
        ("/prices/surcharges", {"model_id": "none", "token_nanousd": 1}, "model_id"),
        ("/prices/surcharges", {"model_id": "m", "adapter_id": str(tenant_like()), "token_nanousd": 1}, "adapter_id"),
        ("/prices/discounts", {"tier": "none", "basis_points": 1}, "tier"),
        ("/prices/discounts", {"tier": "pro", "basis_points": 10_001}, "basis_points"),
        ("/prices/discounts", {"tier": "pro", "basis_points": 0.5}, "basis_points"),
    ):
        refused = await gateway.admin.post(path, json=draft)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def tenant_like() -> str:
    return "00000000-0000-7000-8000-000000000001"


async def test_an_answer_from_the_cache_is_priced_anew_as_one(
    queries: UsageQueries, store: UsageStore, clickhouse_url: str
) -> None:
    cached = {**TOKENS, "cached_prompt_tokens": 100}
    cost_nanousd, lines = (
        price(**cached, is_cached_answer=True)
        for price in (OLD.cost_nanousd, OLD.lines)  # type: ignore[operator]
    )
    store.insert([priced("r", **cached, cached_answer=True, cost_nanousd=cost_nanousd, price_lines=lines)])
    await pages(queries, clickhouse_url, is_applied=True)
    [row] = (await queries.usage(MARCH, tenant_id=None, group_by="request")).rows
    assert (row["cached_answer"], row["cost_nanousd"]) == (True, 100 * 7)
    assert [line["amount_nanousd"] for line in row["price_lines"]] == [700, 1000, -1000]
