"""A gateway that cannot carry more says so at once, the less important first; slow senders are no work of its own."""

import asyncio

from gateway.overload import Bounds
from tests.gateway.inference.test_answers import body
from tests.support.gateways import Gateway, durable_events, eventually


async def test_the_least_important_are_refused_first_and_pay_nothing(gateway: Gateway) -> None:
    free, enterprise = await gateway.make_key(tier="free"), await gateway.make_key(tier="enterprise")
    _, _, most_of_free, _, _ = Bounds().preparing
    held = [gateway.services.overload.begin(0) for _ in range(most_of_free)]
    try:
        async with gateway.client(free) as client:
            refused = await client.post("/chat/completions", json=body())
        assert refused.status_code == 503, refused.text
        assert refused.json()["error"]["code"] == "gateway_overloaded"
        assert 1 <= int(refused.headers["retry-after"]) <= 3
        assert durable_events(gateway) == []
        async with gateway.client(enterprise) as client:
            assert (await client.post("/chat/completions", json=body())).status_code == 200
    finally:
        for preparation in held:
            preparation.end()
    async with gateway.client(free) as client:
        assert (await client.post("/chat/completions", json=body())).status_code == 200


async def test_half_sent_bodies_are_not_counted_as_work(gateway: Gateway, key: str) -> None:
    host, port = gateway.origin.removeprefix("http://").split(":")
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    )
    writers = []
    for _ in range(20):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode())
        writers.append(writer)
    await eventually(lambda: gateway.services.metrics.num_in_flight >= len(writers))
    assert gateway.services.overload.num_preparing == 0
    for writer in writers:
        writer.transport.abort()
    await eventually(lambda: gateway.services.metrics.num_in_flight == 0)
