"""The child's end of the link: reports its state to the parent and answers the parent's requests."""

import asyncio
import itertools
import socket
from collections.abc import Callable

import uvicorn

from gateway.http.errors import Unavailable
from gateway.metric_snapshots import Snapshot
from gateway.processes.inheritance import Inherited
from gateway.processes.messages import (
    FromParent,
    Gather,
    Gathered,
    HurryUp,
    Leaving,
    Link,
    Measure,
    Measured,
    Ready,
    StandInFor,
)
from gateway.processes.stand_in import StandIn

GATHER_DEADLINE_S = 3.0


class ParentLink:
    def __init__(self, link: Link, inherited: Inherited) -> None:
        self._link = link
        self._inherited = inherited
        self._numbers = itertools.count()
        self._gathering: dict[int, asyncio.Future[Snapshot]] = {}

    @classmethod
    async def open(cls, inherited: Inherited) -> "ParentLink":
        reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=inherited.link))
        return cls(Link(reader, writer, FromParent), inherited)

    def ready(self) -> None:
        self._link.send(Ready())

    def leave(self) -> None:
        self._link.send(Leaving())
        self._inherited.close_listeners()

    async def close(self, last_word: Snapshot) -> None:
        self._link.send(Measured(last_word))
        await self._link.close()

    async def add_siblings(self, own: Snapshot) -> Snapshot:
        """The metrics of all processes. Raises Unavailable."""
        number = next(self._numbers)
        answer = self._gathering[number] = asyncio.get_running_loop().create_future()
        self._link.send(Gather(number, own))
        try:
            return await asyncio.wait_for(answer, GATHER_DEADLINE_S)
        except TimeoutError:
            # A partial sum would look like a counter reset to Prometheus.
            raise Unavailable("the gateway's other processes did not answer in time", retry_after_s=5) from None
        finally:
            del self._gathering[number]

    async def follow(self, server: uvicorn.Server, measure: Callable[[], Snapshot]) -> None:
        """Follow the parent's messages until it is gone; then stop serving."""
        stand_in = StandIn(server, self._inherited)
        while (message := await self._link.receive()) is not None:
            match message:
                case Measure():
                    self._link.send(Measured(measure()))
                case Gathered(number, all):
                    waiting = self._gathering.get(number)
                    # A caller that gave up in this turn of the loop has not removed its future yet.
                    if waiting is not None and not waiting.done():
                        waiting.set_result(all)
                case StandInFor(slots):
                    stand_in.accept_for(slots)
                case HurryUp():
                    server.force_exit = server.should_exit = True
        server.should_exit = True
