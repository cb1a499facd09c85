"""A gateway that cannot carry more says so at once, the less important first; slow senders are no work of its own."""

import asyncio
import dataclasses
import json

from gateway.http.connection import Connection
from gateway.inference.turn_away import make_turn_away
from gateway.main import _Server
from gateway.metering.refusals import RefusalCounter
from gateway.overload import Bounds
from tests.gateway.inference.test_answers import body
from tests.gateway.inference.test_counted import scraped
from tests.support.front_doors import Client
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


async def test_a_known_head_is_refused_as_any_other_and_its_connection_goes_on(gateway: Gateway) -> None:
    free = await gateway.make_key(tier="free")
    counter = RefusalCounter(lambda: 60.0)
    assert isinstance(gateway.server, _Server)
    gateway.server.door.turn_away = make_turn_away(dataclasses.replace(gateway.services, refusals=counter))
    text = json.dumps(body()).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {free}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    client = await Client.connect(int(gateway.origin.rpartition(":")[2]))

    async def ask() -> tuple[int, dict[bytes, bytes], bytes]:
        await client.send(head.encode() + text)
        return await client.read_answer()

    assert [(await ask())[0] for _ in range(3)] == [200] * 3
    own_address = client.writer.get_extra_info("sockname")
    [known] = [each for each in gateway.server.server_state.connections if each.client == own_address]  # type: ignore[union-attr]
    assert isinstance(known, Connection) and known.num_parsed == 2
    before = await scraped(gateway, "tiergate_overload_refusals_total")
    held = [gateway.services.overload.begin(0) for _ in range(Bounds().preparing[2])]
    try:
        refused = [await ask() for _ in range(20)]
        assert {status for status, _, _ in refused} == {503}
        assert len({headers[b"x-request-id"] for _, headers, _ in refused}) == 20
        assert {int(headers[b"retry-after"]) for _, headers, _ in refused} <= {1, 2, 3}
        for _, headers, said in refused:
            assert json.loads(said)["error"]["code"] == "gateway_overloaded"
            assert headers[b"content-type"] == b"application/json" and b"connection" not in headers
        after = await scraped(gateway, "tiergate_overload_refusals_total")
        assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {("free",): 20}
        assert [(count.limit, count.status, count.count) for count in counter.take()] == [
            ("gateway_overloaded", 503, 20)
        ]
        for preparation in held:
            preparation.end()
        assert (await ask())[0] == 200
        assert known.num_parsed == 2, "all of these were compared, not parsed"
        held = [gateway.services.overload.begin(0) for _ in range(Bounds().preparing[2])]
        # While the gateway drains.
        state = gateway.server.server_state
        state.default_headers = [*state.default_headers, (b"connection", b"close")]
        status, headers, _ = await ask()
        assert (status, headers[b"connection"]) == (503, b"close")
        async with asyncio.timeout(10):
            # Not only when it has been idle for long.
            assert await client.read_all() == b""
    finally:
        for preparation in held:
            preparation.end()
