"""Accepting for a process that is away: its connections would wait for its successor, and for how long nobody knows."""

import asyncio
from typing import Any

import uvicorn

from gateway.processes.inheritance import Inherited
from gateway.processes.listeners import BACKLOG


class StandIn:
    def __init__(self, server: uvicorn.Server, inherited: Inherited) -> None:
        self._server = server
        self._inherited = inherited
        self._accepting: dict[int, asyncio.Server] = {}

    async def accept_for(self, slots: frozenset[int]) -> None:
        """For these and no others, beside the own. What was accepted stays with us to its end."""
        for slot in self._accepting.keys() - slots:
            ended = self._accepting.pop(slot)
            self._server.servers.remove(ended)
            ended.close()
        for slot in slots - self._accepting.keys() - {self._inherited.slot}:
            if not self._server.should_exit:
                self._accepting[slot] = await self._accept(slot)

    async def _accept(self, slot: int) -> asyncio.Server:
        listener = self._inherited.listener(slot)
        accepting = await asyncio.get_running_loop().create_server(self._protocol, sock=listener, backlog=BACKLOG)
        # The server closes all of its listeners when it stops.
        self._server.servers.append(accepting)
        return accepting

    def _protocol(self) -> asyncio.Protocol:
        config = self._server.config
        # Whichever of uvicorn's classes it is, as uvicorn itself calls it.
        make: Any = config.http_protocol_class
        protocol: asyncio.Protocol = make(config=config, server_state=self._server.server_state, app_state={})
        return protocol
