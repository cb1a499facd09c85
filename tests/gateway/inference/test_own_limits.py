"""Limits of keys and end users as clients see them, and what cards of models tell."""

import asyncio
from collections import Counter
from typing import Any

from tests.support.gateways import Gateway, durable_events

BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 1}


async def new_tenant(gateway: Gateway, **fields: Any) -> str:
    tenant = await gateway.post("/tenants", {"name": f"own-{id(fields)}", "tier": "pro", **fields})
    return str(tenant["id"])


async def new_key(gateway: Gateway, tenant_id: str, **fields: Any) -> str:
    return str((await gateway.post("/keys", {"tenant_id": tenant_id, "name": "k", **fields}))["key"])


async def test_a_keys_limit_binds_it_and_not_its_tenant(gateway: Gateway) -> None:
    tenant_id = await new_tenant(gateway)
    narrow = await new_key(gateway, tenant_id, limits={"requests_per_minute": 2})
    wide = await new_key(gateway, tenant_id)
    async with gateway.client(narrow) as client:
        statuses = [(await client.post("/chat/completions", json=BODY)) for _ in range(3)]
        assert [reply.status_code for reply in statuses] == [200, 200, 429]
        error = statuses[-1].json()["error"]
        assert error["code"] == "requests_per_minute"
        assert error["message"].startswith("limit of this key")
        answer = (await client.get("/limits")).json()
    shown = {(each["scope"].partition(":")[0], each["name"]): each for each in answer["limits"]}
    assert shown["key", "requests_per_minute"]["remaining"] == 0
    assert shown["tenant", "requests_per_minute"]["used"] == 2
    async with gateway.client(wide) as client:
        assert (await client.post("/chat/completions", json=BODY)).status_code == 200


async def test_end_users_are_counted_apart_under_a_race(gateway: Gateway) -> None:
    tenant_id = await new_tenant(gateway, user_limits={"requests_per_minute": 3})
    await gateway.post("/users", {"tenant_id": tenant_id, "user_id": "vip", "limits": {"requests_per_minute": 5}})
    key = await new_key(gateway, tenant_id)
    async with gateway.client(key) as client:

        async def ask(user: str | None) -> tuple[str | None, int]:
            body = BODY if user is None else BODY | {"user": user}
            return user, (await client.post("/chat/completions", json=body)).status_code

        users = ["alice", "böb/ö", "vip", None]
        found = Counter(await asyncio.gather(*(ask(user) for user in users for _ in range(8))))
        limits = (await client.get("/limits", params={"user": "alice"})).json()["limits"]
    assert found == {
        ("alice", 200): 3,
        ("alice", 429): 5,
        ("böb/ö", 200): 3,
        ("böb/ö", 429): 5,
        ("vip", 200): 5,
        ("vip", 429): 3,
        (None, 200): 8,
    }
    [alice] = [each for each in limits if (each["scope"], each["name"]) == ("user:alice", "requests_per_minute")]
    assert (alice["max"], alice["used"]) == (3, 3)
    assert Counter(event.user_id for event in durable_events(gateway)) == {"alice": 3, "böb/ö": 3, "vip": 5, None: 8}


async def test_a_change_of_limits_counts_with_the_next_request(gateway: Gateway) -> None:
    tenant_id = await new_tenant(gateway, limits={"requests_per_minute": 1})
    key = await new_key(gateway, tenant_id)
    async with gateway.client(key) as client:
        assert (await client.post("/chat/completions", json=BODY)).status_code == 200
        refused = await client.post("/chat/completions", json=BODY)
        assert refused.status_code == 429
        # It is not the tier's.
        assert refused.json()["error"]["message"].startswith("limit of this tenant: 1 requests a minute")
        await gateway.admin.patch(f"/tenants/{tenant_id}", json={"limits": {"requests_per_minute": 2}})
        reply = await client.post("/chat/completions", json=BODY)
        assert (reply.status_code, reply.headers["x-ratelimit-limit-requests"]) == (200, "2")


async def test_a_longer_prompt_than_tier_tenant_or_key_allow_is_refused(gateway: Gateway) -> None:
    tenant_id = await new_tenant(gateway, limits={"context_tokens": 40})
    narrow = await new_key(gateway, tenant_id, limits={"context_tokens": 5})
    wide = await new_key(gateway, tenant_id)
    long = BODY | {"messages": [{"role": "user", "content": "one two three " * 30}]}
    others = await new_key(gateway, await new_tenant(gateway, tier="free"))
    await gateway.admin.patch("/tiers/free", json={"context_tokens": 20})
    for key, body, owner in (
        (wide, BODY, None),
        (wide, long, "this tenant is 40"),
        (narrow, BODY, "this key is 5"),
        (others, long, "tier free is 20"),
    ):
        async with gateway.client(key) as client:
            reply = await client.post("/chat/completions", json=body)
        assert reply.status_code == (400 if owner else 200), reply.text
        if owner:
            assert reply.json()["error"]["code"] == "context_quota_exceeded"
            assert f"the limit of {owner}; shorten it" in reply.json()["error"]["message"]


async def test_a_card_tells_window_kind_pools_price_and_the_callers_tier(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        cards = {card["id"]: card for card in (await client.get("/models")).json()["data"]}
        one = (await client.get("/models/pirate")).json()
    assert one == cards["pirate"]
    for name in ("auto", "pirate"):
        assert set(cards[name]["pools"]) == set(cards[name]["price"]) == {"small", "large"}
    assert cards["small"]["pools"] == ["small"]
    for card in cards.values():
        assert card["kind"] == "chat"
        assert card["max_model_len"] == 512
        assert card["tier"]["name"] == "enterprise"
        assert (card["tier"]["requests_per_minute"], card["tier"]["context_tokens"]) == (12_000, 131_072)
        for price in card["price"].values():
            assert (price["prompt_nanousd"], price["completion_nanousd"]) == (100, 400)
