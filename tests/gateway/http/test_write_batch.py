"""Parts of answers that come in one iteration of the event loop leave together, in their order, and nothing is lost."""

import asyncio
from typing import Any

from gateway.http.answer import MAX_HELD_BYTES
from gateway.http.write_batch import MAX_PARTS, WriteBatch
from tests.support.front_doors import DEADLINE_S, Served, request, served

HEAD = {"type": "http.response.start", "status": 200, "headers": []}


class Holder:
    num_writes = 0

    def write_held(self) -> None:
        self.num_writes += 1


async def test_what_is_held_is_written_at_the_end_of_the_iteration_and_once() -> None:
    batch, holders = WriteBatch(), [Holder() for _ in range(3)]
    for holder in holders:
        batch.add(holder)
    assert [holder.num_writes for holder in holders] == [0, 0, 0]
    await asyncio.sleep(0)
    assert [holder.num_writes for holder in holders] == [1, 1, 1]
    await asyncio.sleep(0)
    assert [holder.num_writes for holder in holders] == [1, 1, 1]


async def test_the_first_of_many_does_not_wait_for_the_end_of_the_iteration() -> None:
    batch, holders = WriteBatch(), [Holder() for _ in range(MAX_PARTS + 1)]
    for holder in holders:
        batch.add(holder)
    assert [holder.num_writes for holder in holders] == [1] * MAX_PARTS + [0]
    await asyncio.sleep(0)
    assert {holder.num_writes for holder in holders} == {1}


async def test_parts_arrive_whole_and_in_order_whatever_their_size_and_time() -> None:
    parts = [b"a", b"b" * MAX_HELD_BYTES, b"c", b"", b"d" * 3 * MAX_HELD_BYTES, b"e", b"f"]

    async def in_parts(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await send(HEAD)
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if scope["path"] == "/slow":
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"end"})

    async with served(in_parts) as door:
        for path in ("/", "/slow"):
            client = await door.send(request("GET", path, "Connection: close"))
            assert decoded((await client.read_all()).split(b"\r\n\r\n", 1)[1]) == b"".join(parts) + b"end"


async def test_a_held_part_leaves_although_nothing_follows() -> None:
    async def one_part(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await send(HEAD)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await receive()
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"two"})

    go_on = asyncio.Event()
    async with served(one_part) as door:
        client = await door.send(request("GET", "/", "Connection: close"))
        async with asyncio.timeout(DEADLINE_S):
            await client.reader.readuntil(b"3\r\none\r\n")
        go_on.set()
        assert await client.read_all() == b"3\r\ntwo\r\n0\r\n\r\n"


async def test_a_part_held_for_a_client_that_was_cut_off_is_dropped() -> None:
    async def cut_meanwhile(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await send(HEAD)
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        for connection in list(running.server.server_state.connections):
            if connection.transport.get_extra_info("peername")[1] == scope["client"][1]:
                connection.cut()  # type: ignore[union-attr]

    async with served(cut_meanwhile) as door:
        client = await door.send(request("GET", "/"))
        assert await client.read_all() == b""
        other = await door.send(request("GET", "/"))
        assert await other.read_all() == b""


def decoded(chunked: bytes) -> bytes:
    body, rest = b"", chunked
    while rest:
        size, rest = rest.split(b"\r\n", 1)
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body
