"""`POST /v1/route` tells what would happen, and leaves nothing behind."""

from typing import Any

from tests.support.gateways import Gateway, durable_events


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9} | fields


async def test_a_dry_run_tells_everything_that_decides_and_costs_nothing(gateway: Gateway) -> None:
    await gateway.admin.patch("/tiers/free", json={"requests_per_minute": 1})
    async with gateway.client(await gateway.make_key(tier="free")) as client:
        told = [(await client.post("/route", json=body())).json() for _ in range(3)][-1]
        assert (told["pool"], told["route"], told["threshold"]) == ("small", "simple", 0.25)
        assert told["complexity"] < told["threshold"]
        assert told["pools"] == [{"pool": "small", "standing": "open"}]
        [candidate] = told["candidates"]
        assert (candidate["num_waiting"], candidate["is_adapter_resident"]) == (0, True)
        assert candidate["turns"] >= 1
        assert told["max_cost_nanousd"] > 0
        assert durable_events(gateway) == []
        assert (await client.post("/chat/completions", json=body())).headers["x-tiergate-pool"] == "small"


async def test_thresholds_change_while_the_gateway_runs(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        assert (await client.post("/route", json=body())).json()["route"] == "simple"
        changed = await gateway.admin.patch("/tiers/enterprise", json={"complexity_threshold": 0})
        assert changed.status_code == 200
        told = (await client.post("/route", json=body())).json()
        assert (told["pool"], told["route"], told["threshold"]) == ("large", "complex", 0)
        for bad in (
            {"complexity_threshold": 1.5},
            {"uncertain_threshold": -0.1},
            {"uncertain_threshold": "NaN"},
            {"ttft_target_ms": 0},
        ):
            refused = await gateway.admin.patch("/tiers/enterprise", json=bad)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(bad)))


async def test_a_dry_run_is_refused_as_the_request_would_be(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        assert (await client.post("/route", json=body(model="nothing"))).status_code == 404
        assert (await client.post("/route", json=body(messages=[]))).status_code == 400
        assert (await client.post("/route", json=body(max_tokens=10_000))).json()["error"]["param"] == "max_tokens"
    async with gateway.client("tg-unknown-key") as client:
        assert (await client.post("/route", json=body())).status_code == 401


async def test_a_tiers_share_of_large_calls_sets_its_threshold_at_once(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        thresholds = []
        for share in (0, 0.2, 0.6, 1):
            assert (await gateway.admin.patch("/tiers/enterprise", json={"large_share": share})).status_code == 200
            thresholds.append((await client.post("/route", json=body())).json()["threshold"])
        assert thresholds == sorted(thresholds, reverse=True)
        assert (thresholds[0], thresholds[-1]) == (1, 0)
        assert (await client.post("/route", json=body())).json()["route"] == "complex"
        await gateway.admin.patch("/tiers/enterprise", json={"large_share": None, "complexity_threshold": 0.9})
        assert (await client.post("/route", json=body())).json()["threshold"] == 0.9
        refused = await gateway.admin.patch("/tiers/enterprise", json={"large_share": 1.5})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "large_share")


async def test_what_asks_for_a_schema_goes_large(gateway: Gateway, key: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    async with gateway.client(key) as client:
        for fields, pool in (
            ({"response_format": form}, "large"),
            ({"response_format": {"type": "json_object"}}, "large"),
            ({"guided_json": {}}, "large"),
            ({"guided_choice": ["yes", "no"]}, "small"),
            ({"response_format": {"type": "text"}}, "small"),
        ):
            assert (await client.post("/route", json=body(**fields))).json()["pool"] == pool, fields


async def test_what_offers_tools_goes_large(gateway: Gateway, key: str) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    async with gateway.client(key) as client:
        assert (await client.post("/route", json=body(tools=tools))).json()["pool"] == "large"
