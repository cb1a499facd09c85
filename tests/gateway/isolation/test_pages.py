"""Every list of the admin API has pages, and they hold every row once and in order."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.metering.store import UsageStore
from tests.gateway.isolation.objects import make_objects, make_platforms_objects
from tests.support.clickhouse import any_clickhouse, own_database
from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.valkey import ValkeyProcess

WALKED_ELSEWHERE = {
    "/admin/v1/invoices/{invoice_id}/lines/{position}/requests",  # billing/test_invoices_over_rest.py
    "/admin/v1/usage",  # metering/test_queries.py
    "/admin/v1/usage/refusals",  # metering/test_refusals.py
}
PRICE = {"prompt_nanousd": 1, "completion_nanousd": 2}
NUM_LOOKS = 3


async def test_every_list_is_walked_by_its_pages(tmp_path: Path, valkey: ValkeyProcess) -> None:
    # Nothing answers there: the replicas are listed all the same.
    members = [{"url": f"http://127.0.0.1:9/{number}", "engine": "openai"} for number in range(3)]
    listed = {"away": {"model": "m", "context_window": 512, "members": members}}
    with (
        any_clickhouse(tmp_path / "clickhouse") as server,
        own_database(server) as url,
        closing(UsageStore(url)) as store,
    ):
        store.prepare()
        settings = make_settings(tmp_path, valkey.url, clickhouse_url=url, pools=listed)
        async with running_gateway(settings) as gateway:
            objects = await make_rows(gateway, store)
            document = (await gateway.admin.get(f"{gateway.origin}/openapi.json")).json()
            paths = set(lists_of(document))
            assert paths > WALKED_ELSEWHERE
            for path in sorted(paths - WALKED_ELSEWHERE):
                target = f"{gateway.origin}{path.format(**objects)}"
                pages: list[Any] = []
                # A webhook's delivery may be tried in between, which changes its row.
                for _ in range(NUM_LOOKS):
                    whole = (await gateway.admin.get(target, params={"limit": 1000})).json()
                    assert len(whole["data"]) >= 2 and whole["next"] is None, path
                    pages = await walked(gateway, target, most=len(whole["data"]))
                    if pages == whole["data"]:
                        break
                assert pages == whole["data"], path


async def make_rows(gateway: Gateway, store: UsageStore) -> dict[str, str]:
    """Two or more for every list; the objects that paths name."""
    await make_platforms_objects(gateway)
    await make_objects(gateway, store, name="alice")
    _, objects = await make_objects(gateway, store, name="bobby")
    await gateway.post("/models", {"id": "m-9b", "pool": "other", "context_window": 512})
    await gateway.post("/prices", {"model_id": "m-9b", **PRICE})
    for model_id in ("m-7b", "m-9b"):
        await gateway.post("/prices/surcharges", {"model_id": model_id, "token_nanousd": 1})
        await gateway.post("/prices/discounts", {"tier": "pro", "basis_points": 100})
        assert (await gateway.admin.post(f"/webhooks/{objects['webhook_id']}/ping")).is_success
    return objects


def lists_of(document: dict[str, Any]) -> Iterator[str]:
    """Their paths; every one takes `limit` and `after`."""
    for path, operations in document["paths"].items():
        answer = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        name = answer.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
        fields = document["components"]["schemas"].get(name, {}).get("properties", {})
        if path.startswith("/admin/") and fields.get("data", {}).get("type") == "array":
            parameters = {each["name"] for each in operations["get"]["parameters"]}
            assert {"limit", "after"} <= parameters and "next" in fields, path
            yield path


async def walked(gateway: Gateway, target: str, *, most: int) -> list[Any]:
    found: list[Any] = []
    after: dict[str, str] = {}
    while len(found) <= most:
        page = (await gateway.admin.get(target, params={**after, "limit": 1})).json()
        assert len(page["data"]) == 1, (target, after, page)
        found += page["data"]
        if page["next"] is None:
            return found
        after = {"after": page["next"]}
    raise AssertionError(f"{target}: more pages than rows")
