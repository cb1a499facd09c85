"""OpenAI's own client reads our usage and our costs."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest

from gateway.domain.prices.price_book import RequestPrice
from gateway.metering.store import UsageStore
from tests.support.events import make_event
from tests.support.gateways import ADMIN_KEY, Gateway

START = datetime(2026, 3, 1, tzinfo=UTC)
START_S = int(START.timestamp())
DAY_S = 86_400
PRICE = RequestPrice("p", prompt_nanousd=1, completion_nanousd=1_000_000_000)


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(admin_api_key=ADMIN_KEY, api_key="none", base_url=gateway.base_url) as opened:
        yield opened


def fill(store: UsageStore) -> None:
    used = {"prompt_tokens": 3, "cached_prompt_tokens": 0, "completion_tokens": 2}
    common = {"cost_nanousd": PRICE.cost_nanousd(**used), "price_lines": PRICE.lines(**used), **used}
    store.insert(
        [
            make_event("r1", tenant_id="a", timestamp=START, model_version="m@1", user_id="u", **common),
            make_event("r2", tenant_id="a", timestamp=START + timedelta(hours=25), model_version="m@2", **common),
            make_event("r3", tenant_id="b", timestamp=START + timedelta(days=3), model_version="n@1", **common),
            make_event(
                "r4", tenant_id="b", timestamp=START + timedelta(days=3), endpoint="/v1/embeddings", cost_nanousd=7
            ),
        ]
    )


async def test_usage_comes_in_whole_buckets_also_empty_ones(client: openai.AsyncOpenAI, store: UsageStore) -> None:
    fill(store)
    usage = client.admin.organization.usage
    page: Any = await usage.completions(
        start_time=START_S, end_time=START_S + 5 * DAY_S, group_by=["model", "project_id"], limit=4
    )
    assert [len(bucket.results) for bucket in page.data] == [1, 1, 0, 1]
    assert [bucket.start_time for bucket in page.data] == [START_S + n * DAY_S for n in range(4)]
    first = page.data[0].results[0]
    assert (first.object, first.model, first.project_id) == ("organization.usage.completions.result", "m", "a")
    assert (first.input_tokens, first.output_tokens, first.num_model_requests, first.user_id) == (3, 2, 1, None)
    assert page.has_more
    rest: Any = await usage.completions(
        start_time=START_S, end_time=START_S + 5 * DAY_S, group_by=["model"], limit=4, page=page.next_page
    )
    assert ([len(bucket.results) for bucket in rest.data], rest.has_more) == ([0], False)


async def test_usage_is_filtered_and_grouped_by_hours_and_users(client: openai.AsyncOpenAI, store: UsageStore) -> None:
    fill(store)
    page: Any = await client.admin.organization.usage.completions(
        start_time=START_S,
        end_time=START_S + 3600 * 26,
        bucket_width="1h",
        limit=26,
        models=["m"],
        group_by=["user_id"],
    )
    found = {n: [(r.user_id, r.num_model_requests) for r in b.results] for n, b in enumerate(page.data) if b.results}
    assert found == {0: [("u", 1)], 25: [("user-1", 1)]}


async def test_costs_are_dollars_to_the_nano_dollar(
    client: openai.AsyncOpenAI, gateway: Gateway, store: UsageStore
) -> None:
    fill(store)
    page: Any = await client.admin.organization.usage.costs(
        start_time=START_S, end_time=START_S + 4 * DAY_S, group_by=["line_item", "project_id"]
    )
    last = {result.line_item: result.amount.value for result in page.data[3].results}
    assert last == {"n, input": 3e-9, "n, output": 2.0, "tiergate-demo-small, tokens": 7e-9}
    raw = await gateway.admin.get(
        f"{gateway.base_url}/organization/costs", params={"start_time": START_S, "end_time": START_S + DAY_S}
    )
    assert '"value":2.000000003' in raw.text


async def test_a_tenants_administrator_sees_its_own_and_bad_questions_are_refused(
    gateway: Gateway, store: UsageStore
) -> None:
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    store.insert([make_event(name, tenant_id=who, timestamp=START) for name, who in (("x", tenant["id"]), ("y", "b"))])
    key = (await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "a", "scopes": ["tenant-admin"]}))["key"]
    async with gateway.client(key) as mine:
        asked = {"start_time": START_S, "end_time": START_S + DAY_S, "group_by": "project_id"}
        for path, count in (("/organization/usage/completions", 1), ("/organization/costs", 1)):
            [bucket] = (await mine.get(path, params=asked)).json()["data"]
            assert [result["project_id"] for result in bucket["results"]] == [tenant["id"]] * count
            for wrong in (
                {"group_by": "model_name"},
                {"start_time": START_S + DAY_S},
                {"bucket_width": "1y"},
                {"limit": 10_000},
                {"page": "made up"},
            ):
                assert (await mine.get(path, params=asked | wrong)).status_code == 400
    async with gateway.client(await gateway.make_key()) as other:
        assert (await other.get("/organization/costs", params=asked)).status_code == 403
