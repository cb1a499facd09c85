"""Parts of answers leave together in the event loop's next turn, in their order, and nothing is lost."""

import asyncio
import logging
import socket
import struct
from typing import Any

import pytest
import uvloop

from gateway.http.answer import MAX_HELD_BYTES
from gateway.http.write_batch import MAX_HOLDERS, WriteBatch
from tests.support.front_doors import DEADLINE_S, Served, request, served

HEAD = {"type": "http.response.start", "status": 200, "headers": []}


class Holder:
    num_writes = 0

    def write_held(self) -> None:
        self.num_writes += 1


async def test_what_is_held_is_written_in_the_next_turn_and_once() -> None:
    batch, holders = WriteBatch(), [Holder() for _ in range(3)]
    for holder in holders:
        batch.add(holder)
    assert [holder.num_writes for holder in holders] == [0, 0, 0]
    await asyncio.sleep(0)
    assert [holder.num_writes for holder in holders] == [1, 1, 1]
    await asyncio.sleep(0)
    assert [holder.num_writes for holder in holders] == [1, 1, 1]


async def test_the_first_of_many_does_not_wait_for_the_next_turn() -> None:
    batch, holders = WriteBatch(), [Holder() for _ in range(MAX_HOLDERS + 1)]
    for holder in holders:
        batch.add(holder)
    assert [holder.num_writes for holder in holders] == [1] * MAX_HOLDERS + [0]
    await asyncio.sleep(0)
    assert {holder.num_writes for holder in holders} == {1}


async def test_a_failure_to_write_one_part_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Holder):
        def write_held(self) -> None:
            raise RuntimeError("closed")

    batch, last = WriteBatch(), Holder()
    for holder in (Broken(), last):
        batch.add(holder)
    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(0)
    assert last.num_writes == 1
    assert "could not be written" in caplog.text


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


async def test_each_held_part_leaves_although_nothing_follows() -> None:
    async def step_by_step(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await send(HEAD)
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            await read.wait()
            read.clear()
        await send({"type": "http.response.body", "body": b"end"})

    read = asyncio.Event()
    async with served(step_by_step) as door:
        client = await door.send(request("GET", "/", "Connection: close"))
        for _ in range(3):
            async with asyncio.timeout(DEADLINE_S):
                await client.reader.readuntil(b"4\r\npart\r\n")
            read.set()
        assert await client.read_all() == b"3\r\nend\r\n0\r\n\r\n"


async def test_a_client_that_does_not_read_slows_a_sender_of_small_parts_down() -> None:
    num_sent = 0

    async def many_small_parts(running: Served, scope: Any, receive: Any, send: Any) -> None:
        nonlocal num_sent
        await send(HEAD)
        for _ in range(100_000):
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            num_sent += 1

    async with served(many_small_parts) as door:
        client = await door.send(request("GET", "/"))
        seen = -1
        async with asyncio.timeout(DEADLINE_S):
            while seen != num_sent or not num_sent:
                seen = num_sent
                await asyncio.sleep(0.1)
        # What the kernel and the transport buffer, not all 100 MB.
        assert num_sent < 50_000
        client.writer.transport.abort()


def test_clients_that_vanish_while_parts_are_held_do_not_disturb_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """On uvloop, as in production: there a transport that is closed raises when it is written to."""

    async def ticking(running: Served, scope: Any, receive: Any, send: Any) -> None:
        await send(HEAD)
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"tick", "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"end"})

    async def tries() -> None:
        async with served(ticking) as door:
            for _ in range(20):
                vanishing = [await door.send(request("GET", "/")) for _ in range(5)]
                staying = await door.send(request("GET", "/", "Connection: close"))
                for client in vanishing:
                    await client.reader.readuntil(b"tick")
                    reset(client.writer)
                assert decoded((await staying.read_all()).split(b"\r\n\r\n", 1)[1]) == b"tick" * 200 + b"end"
            async with asyncio.timeout(DEADLINE_S):
                while door.num_connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    with caplog.at_level(logging.ERROR):
        uvloop.run(tries())
    assert not caplog.records


def reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side sees a reset."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


def decoded(chunked: bytes) -> bytes:
    body, rest = b"", chunked
    while rest:
        size, rest = rest.split(b"\r\n", 1)
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body
