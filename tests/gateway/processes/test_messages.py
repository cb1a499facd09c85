import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import uvicorn

from gateway.processes.inheritance import Inherited
from gateway.processes.messages import FromChild, FromParent, Gather, Gathered, Leaving, Link, Measured, Ready
from gateway.processes.parent_link import ParentLink


class FromTheFuture(msgspec.Struct, tag=True):
    novelty: int


async def test_messages_arrive_in_order_and_those_of_another_version_are_skipped() -> None:
    ours, theirs = socket.socketpair()
    parent = Link(*await asyncio.open_unix_connection(sock=ours), FromChild)
    child = Link(*await asyncio.open_unix_connection(sock=theirs), FromParent)
    said = [Ready(), FromTheFuture(1), Measured(own=()), Leaving()]
    for message in said:
        child.send(message)  # type: ignore[arg-type]
    await child.close()
    async with asyncio.timeout(10):
        heard = [await parent.receive() for _ in range(4)]
    assert heard == [Ready(), Measured(own=()), Leaving(), None]
    # To one that is gone.
    parent.send(Ready())
    child.send(Ready())
    await parent.close()


class _Overtaken(Link):
    """`before_answer` runs when an answer is read, before it is handed over."""

    before_answer: Callable[[], Awaitable[None]] | None = None

    async def receive(self) -> Any:
        message = await super().receive()
        if isinstance(message, Gathered) and self.before_answer is not None:
            await self.before_answer()
        return message


@pytest.mark.parametrize("num_turns", [0, 1, 2, 3])
async def test_an_answer_for_someone_who_just_left_ends_nothing(num_turns: int) -> None:
    """However far the leaving has come: it takes a few turns of the loop."""
    ours, theirs = socket.socketpair()
    parent = Link(*await asyncio.open_unix_connection(sock=ours), FromChild)
    link = _Overtaken(*await asyncio.open_unix_connection(sock=theirs), FromParent)
    child = ParentLink(link, Inherited(0, (), 0))
    server = uvicorn.Server(uvicorn.Config(_nothing, log_config=None))
    following = asyncio.create_task(child.follow(server, lambda: ()))

    async def leave() -> None:
        leaving.cancel()
        for _ in range(num_turns):
            await asyncio.sleep(0)

    async with asyncio.timeout(10):
        leaving = asyncio.create_task(child.add_siblings(()))
        link.before_answer = leave
        await _answer_next(parent)
        await asyncio.wait([leaving])
        link.before_answer = None
        staying = asyncio.create_task(child.add_siblings(()))
        await _answer_next(parent)
        await asyncio.wait([staying, following], return_when=asyncio.FIRST_COMPLETED)
        assert not following.done() and staying.result() == ()
        await parent.close()
        await following
    assert server.should_exit
    await link.close()


async def _answer_next(parent: Link) -> None:
    asked = await parent.receive()
    assert isinstance(asked, Gather)
    parent.send(Gathered(asked.number, ()))


async def _nothing(*_: object) -> None: ...
