"""A gateway that cannot carry more says so at once, the less important first; slow senders are no work of its own."""

import asyncio
import json

from gateway.overload import Bounds
from tests.gateway.inference.test_answers import body
from tests.support.gateways import Gateway, durable_events, eventually


async def test_the_least_important_are_refused_first_and_pay_nothing(gateway: Gateway) -> None:
    free, enterprise = await gateway.make_key(tier="free"), await gateway.make_key(tier="enterprise")
    _, _, most_of_free, _, _ = Bounds().preparing
    held = [gateway.services.overload.begin(0) for _ in range(most_of_free)]
    try:
        async with gateway.client(free) as client:
            # By the whole way, since the key is not known yet, and for a browser's page; then where headers are parsed.
            for headers in ({}, {"origin": "https://elsewhere"}, {}, {}):
                refused = await client.post("/chat/completions", json=body(), headers=headers)
                assert refused.status_code == 503, refused.text
                assert refused.json()["error"]["code"] == "gateway_overloaded"
                assert refused.headers["content-type"] == "application/json"
                assert len(refused.headers["x-request-id"]) > 10
                assert 1 <= int(refused.headers["retry-after"]) <= 3
            assert (await client.get("/models")).status_code == 200
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


async def test_a_refusal_leaves_the_connection_in_step_however_its_body_comes(gateway: Gateway) -> None:
    free = await gateway.make_key(tier="free")
    host, port = gateway.origin.removeprefix("http://").split(":")
    text = json.dumps(body()).encode()

    def head(*lines: str) -> bytes:
        lines = ("POST /v1/chat/completions HTTP/1.1", "Host: a", f"Authorization: Bearer {free}", *lines)
        return "\r\n".join((*lines, "Content-Type: application/json", "", "")).encode()

    whole = head(f"Content-Length: {len(text)}") + text
    chunked = head("Transfer-Encoding: chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)
    last = head(f"Content-Length: {len(text)}", "Connection: close") + text
    held = [gateway.services.overload.begin(0) for _ in range(Bounds().preparing[2])]
    try:
        # Whole, three at once, in two parts, and with what ends a connection.
        for parts in ([whole], [whole * 3], [whole[:-5], whole[-5:]], [chunked], [last], [whole, whole, last]):
            reader, writer = await asyncio.open_connection(host, int(port))
            expected = sum(part.count(b"POST") for part in parts)
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.05)
            writer.write(b"" if b"close" in b"".join(parts) else last)
            expected += b"close" not in b"".join(parts)
            writer.write_eof()
            answers = await asyncio.wait_for(reader.read(), 20)
            assert answers.count(b"HTTP/1.1 503") == expected, (parts, answers)
            writer.close()
    finally:
        for preparation in held:
            preparation.end()
