"""Limits as a client sees them."""

from typing import Any

from tests.support.gateways import Gateway, durable_events, eventually

BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 1}


async def limit(gateway: Gateway, **limits: Any) -> str:
    """A key of the free tier with only these limits."""
    none = dict.fromkeys(("requests_per_minute", "tokens_per_minute", "concurrency", "tokens_per_day"))
    reply = await gateway.admin.patch("/tiers/free", json=none | limits)
    assert reply.status_code == 200, reply.text
    return await gateway.make_key(tier="free", scopes=("inference", "usage"))


async def test_the_request_over_the_limit_gets_429_with_what_to_do(gateway: Gateway) -> None:
    key = await limit(gateway, requests_per_minute=3)
    async with gateway.client(key) as client:
        for remaining in (2, 1, 0):
            reply = await client.post("/chat/completions", json=BODY)
            assert reply.status_code == 200
            assert reply.headers["x-ratelimit-limit-requests"] == "3"
            assert reply.headers["x-ratelimit-remaining-requests"] == str(remaining)
            assert reply.headers["x-ratelimit-reset-requests"] == "1m0s"
        refused = await client.post("/chat/completions", json=BODY)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "requests_per_minute"
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(durable_events(gateway)) == 3


async def test_tokens_reserved_and_not_used_come_back(gateway: Gateway) -> None:
    key = await limit(gateway, tokens_per_minute=300)
    async with gateway.client(key) as client:
        for _ in range(3):
            reply = await client.post("/chat/completions", json=BODY | {"max_tokens": 200, "stop": "e"})
            assert reply.status_code in (200, 429)
            assert reply.status_code == 200 or reply.json()["error"]["code"] == "tokens_per_minute"
        remaining = int(reply.headers["x-ratelimit-remaining-tokens"])
    assert remaining < 300


async def test_a_budget_binds_at_the_dearest_price(gateway: Gateway) -> None:
    key = await limit(gateway, budget_nanousd_per_month=50_000)
    async with gateway.client(key) as client:
        dear = await client.post("/chat/completions", json=BODY | {"max_tokens": 400})
        assert (dear.status_code, dear.json()["error"]["code"]) == (429, "budget")
        assert (await client.post("/chat/completions", json=BODY)).status_code == 200


async def test_a_client_that_leaves_frees_its_place(gateway: Gateway) -> None:
    key = await limit(gateway, concurrency=1)
    long = BODY | {"max_tokens": 400, "stream": True, "ignore_eos": True}
    async with gateway.client(key) as client:
        async with client.stream("POST", "/chat/completions", json=long) as reply:
            assert reply.status_code == 200
            refused = await client.post("/chat/completions", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "concurrency")
        await eventually(lambda: not gateway.services.limiter.local.live_requests())
        await eventually(lambda: not len(gateway.services.limiter.settlements))
        assert (await client.post("/chat/completions", json=BODY)).status_code == 200


async def test_a_client_is_told_what_is_left_of_everything_and_when_it_frees(gateway: Gateway) -> None:
    key = await limit(gateway, requests_per_minute=5, tokens_per_day=1000, budget_nanousd_per_month=10**9)
    async with gateway.client(key) as client:
        assert (await client.post("/chat/completions", json=BODY)).status_code == 200
        answer = (await client.get("/limits")).json()
    assert (answer["tier"], answer["limiter"]) == ("free", "shared")
    limits = {each["name"]: each for each in answer["limits"]}
    requests, day, budget = limits["requests_per_minute"], limits["tokens_per_day"], limits["budget"]
    assert (requests["used"], requests["remaining"], requests["scope"]) == (1, 4, "tenant")
    assert requests["frees_at"] <= requests["resets_at"] < day["resets_at"] <= budget["resets_at"]
    [event] = durable_events(gateway)
    assert day["used"] == event.prompt_tokens + event.completion_tokens
    assert budget["remaining"] == 10**9 - event.cost_nanousd
    assert (limits["tokens_per_minute"]["max"], limits["tokens_per_minute"]["remaining"]) == (None, None)
    # Without ClickHouse nobody knows what is unbilled.
    assert answer["credit"] == {"balance_nanousd": 0, "unbilled_nanousd": None}
