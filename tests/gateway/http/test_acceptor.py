"""Accepting: all who wait, in one turn of the loop, and again after files ran out."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from typing import cast

import pytest

from gateway.http.acceptor import Acceptor

NUM_WAITING = 200


class Counting(asyncio.Protocol):
    num_made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Counting.num_made += 1
        cast(asyncio.Transport, transport).abort()


@pytest.fixture
def waiting() -> Iterator[list[socket.socket]]:
    Counting.num_made = 0
    clients = [socket.socket() for _ in range(NUM_WAITING)]
    yield clients
    for client in clients:
        client.close()


def _connect(listener: socket.socket, clients: list[socket.socket]) -> None:
    for client in clients:
        client.connect(listener.getsockname())


async def _until_made(count: int) -> None:
    async with asyncio.timeout(20):
        while Counting.num_made < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_all_who_wait_are_accepted_within_a_few_turns(waiting: list[socket.socket]) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=NUM_WAITING)
    _connect(listener, waiting)
    acceptor = Acceptor(listener, Counting)
    turns = 0
    while Counting.num_made < NUM_WAITING and turns < 20:
        await asyncio.sleep(0)
        turns += 1
    acceptor.close()
    await acceptor.wait_closed()
    assert Counting.num_made == NUM_WAITING


async def test_closing_twice_harms_nobody_who_has_its_number_by_then(waiting: list[socket.socket]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(listener, Counting)
    number = listener.fileno()
    acceptor.close()
    successor = socket.create_server(("127.0.0.1", 0), backlog=NUM_WAITING)
    assert successor.fileno() == number
    other = Acceptor(successor, Counting)
    acceptor.close()
    _connect(successor, waiting[:1])
    await _until_made(1)
    other.close()


async def test_it_accepts_again_after_files_ran_out(waiting: list[socket.socket]) -> None:
    listener = _Exhausted()
    listener.bind(("127.0.0.1", 0))
    acceptor = Acceptor(listener, Counting)
    _connect(listener, waiting[:3])
    await _until_made(3)
    assert listener.num_refused == 1
    acceptor.close()


class _Exhausted(socket.socket):
    """There is no descriptor for the first connection."""

    num_refused = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.num_refused == 0:
            self.num_refused += 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()
