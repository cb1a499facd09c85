import asyncio
import socket

import msgspec

from gateway.processes.messages import FromChild, FromParent, Leaving, Link, Measured, Ready


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
