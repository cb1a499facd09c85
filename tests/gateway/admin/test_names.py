"""A name means one thing to everybody who sees it, and looks like nothing else."""

from datetime import UTC, datetime

import pytest

from tests.support.gateways import Gateway


async def seed(gateway: Gateway) -> None:
    await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
    await gateway.post("/adapters", {"name": "pirate", "variants": {"m-7b": "p"}})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"id": "pirate", "pool": "legal"}, "id"),
        ({"id": "m-70b", "pool": "pirate"}, "pool"),
        ({"id": "small", "pool": "legal"}, "id"),
        ({"id": "large", "pool": "legal"}, "id"),
        ({"id": "m-70b", "pool": "m-7b"}, "pool"),
        ({"id": "m-70b", "pool": "small"}, "pool"),
    ],
)
async def test_a_model_takes_nobodys_name(gateway: Gateway, fields: dict[str, str], param: str) -> None:
    await seed(gateway)
    reply = await gateway.admin.post("/models", json={**fields, "context_window": 512})
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, param), reply.text
    async with gateway.client(await gateway.make_key()) as client:
        cards = {card["id"] for card in (await client.get("/models")).json()["data"]}
    assert cards == {"auto", "small", "m-7b", "pirate"}


async def test_a_model_does_not_take_a_private_adapters_name_either(gateway: Gateway) -> None:
    await seed(gateway)
    owner = await gateway.post("/tenants", {"name": "owner", "tier": "pro"})
    await gateway.post("/adapters", {"name": "secret", "variants": {"m-7b": "s"}, "tenant_id": owner["id"]})
    for body in ({"id": "secret", "pool": "legal"}, {"id": "x", "pool": "secret"}):
        reply = await gateway.admin.post("/models", json={**body, "context_window": 512})
        assert reply.status_code == 409 and owner["id"] in reply.text


async def test_a_pool_may_be_called_as_its_own_model_and_be_declared_again(gateway: Gateway) -> None:
    for window in (512, 512, 1024):
        await gateway.post("/models", {"id": "legal", "pool": "legal", "context_window": window})
    await gateway.post("/models", {"id": "legal", "pool": "law", "context_window": 1024})


@pytest.mark.parametrize("name", ["auto", "small", "large", "m-7b", "pirate"])
@pytest.mark.parametrize("is_private", [False, True])
async def test_an_adapter_takes_no_name_that_its_tenant_sees(gateway: Gateway, name: str, *, is_private: bool) -> None:
    await seed(gateway)
    owner = await gateway.post("/tenants", {"name": "owner", "tier": "pro"})
    body = {"name": name, "variants": {"m-7b": "p"}, "tenant_id": owner["id"] if is_private else None}
    reply = await gateway.admin.post("/adapters", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, "name"), reply.text


async def test_two_tenants_may_have_an_adapter_of_one_name_and_then_it_is_nobody_elses(gateway: Gateway) -> None:
    await seed(gateway)
    tenants = [await gateway.post("/tenants", {"name": name, "tier": "pro"}) for name in ("one", "two")]
    for tenant in tenants:
        await gateway.post("/adapters", {"name": "voice", "variants": {"m-7b": "v"}, "tenant_id": tenant["id"]})
    again = {"name": "voice", "variants": {"m-7b": "v"}}
    for owner in (None, tenants[0]["id"]):
        assert (await gateway.admin.post("/adapters", json={**again, "tenant_id": owner})).status_code == 409


@pytest.mark.parametrize(
    "hidden",
    [
        "\x00",
        "\n",
        "\x7f",
        "\x85",
        "\u200b",
        "\u200d",
        "\u202e",
        "\u2066",
        "\ufeff",
        "\u00ad",
        "\u2028",
        "\u3164",
        "\ufe0f",
    ],
)
async def test_what_cannot_be_seen_is_in_no_name(gateway: Gateway, hidden: str) -> None:
    await seed(gateway)
    tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro"})
    bad = f"ac{hidden}me"
    bodies = [
        ("/tenants", {"name": bad, "tier": "pro"}, "name"),
        ("/keys", {"name": bad, "tenant_id": tenant["id"]}, "name"),
        ("/models", {"id": bad, "pool": "legal", "context_window": 5}, "id"),
        ("/adapters", {"name": bad, "variants": {"m-7b": "p"}}, "name"),
        ("/adapters", {"name": "fine", "variants": {"m-7b": bad}}, "variants.m-7b"),
    ]
    for path, body, param in bodies:
        reply = await gateway.admin.post(path, json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param), reply.text
        # Without the words of the library that checks.
        assert error["message"].startswith(f"{param}: must not hold characters that cannot be seen")


async def test_names_are_trimmed_and_have_one_form(gateway: Gateway) -> None:
    made = await gateway.post("/tenants", {"name": "  Café Zoë \n", "tier": "pro"})
    assert made["name"] == "Café Zoë"
    reply = await gateway.admin.post("/tenants", json={"name": "Cafe\u0301 Zoe\u0308", "tier": "pro"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, "name")
    assert (await gateway.post("/tenants", {"name": "北京 👍", "tier": "pro"}))["name"] == "北京 👍"


async def test_a_tier_allows_only_pools_that_something_serves(gateway: Gateway) -> None:
    await seed(gateway)
    refused = await gateway.admin.patch("/tiers/free", json={"allowed_pools": ["small", "smal"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "allowed_pools")
    assert "'smal'" in refused.json()["error"]["message"]
    allowed = await gateway.admin.patch("/tiers/free", json={"allowed_pools": ["small"]})
    assert allowed.json()["allowed_pools"] == ["small"]
    assert (await gateway.admin.patch("/tiers/free", json={"allowed_pools": None})).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("PATCH", "/tiers/free", {"requests_per_minute": True}, "requests_per_minute"),
        ("PATCH", "/tiers/free", {"requests_per_minute": "5"}, "requests_per_minute"),
        ("PATCH", "/tiers/free", {"requests_per_minute": 5.0}, "requests_per_minute"),
        ("PATCH", "/tiers/free", {"weight": "2"}, "weight"),
        ("PATCH", "/tiers/free", {"weight": True}, "weight"),
        ("PATCH", "/tiers/free", {"is_best_effort": 1}, "is_best_effort"),
        ("PATCH", "/tiers/free", {"is_best_effort": "no"}, "is_best_effort"),
        ("POST", "/models", {"id": "m", "pool": "legal", "context_window": "5"}, "context_window"),
        ("POST", "/models", {"id": "m", "pool": "legal", "context_window": True}, "context_window"),
        ("POST", "/prices", {"model_id": "m-7b", "prompt_nanousd": "1", "completion_nanousd": 1}, "prompt_nanousd"),
        ("POST", "/tenants", {"name": 5, "tier": "pro"}, "name"),
        ("POST", "/keys", {"name": "k", "tenant_id": 5}, "tenant_id"),
    ],
)
async def test_what_looks_like_a_number_is_none(
    gateway: Gateway, method: str, path: str, body: dict[str, object], param: str
) -> None:
    await seed(gateway)
    reply = await gateway.admin.request(method, path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


@pytest.mark.parametrize("moment", [1900000000, "1900000000", "2099-01-01T00:00:00", "tomorrow", True])
async def test_a_price_begins_at_a_time_with_a_zone(gateway: Gateway, moment: object) -> None:
    await seed(gateway)
    price = {"model_id": "m-7b", "prompt_nanousd": 1, "completion_nanousd": 1}
    reply = await gateway.admin.post("/prices", json={**price, "valid_from": moment})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "valid_from"), reply.text
    made = await gateway.post("/prices", {**price, "valid_from": "2099-01-01T00:00:00+02:00"})
    assert datetime.fromisoformat(made["valid_from"]) == datetime(2098, 12, 31, 22, tzinfo=UTC)
