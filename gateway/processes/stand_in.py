"""Accepts connections for a slot without a process, which would otherwise wait indefinitely for a successor."""

import uvicorn

from gateway.http.acceptor import Acceptor, accept_from
from gateway.processes.inheritance import Inherited


class StandIn:
    def __init__(self, server: uvicorn.Server, inherited: Inherited) -> None:
        self._server = server
        self._inherited = inherited
        self._accepting: dict[int, Acceptor] = {}

    def accept_for(self, slots: frozenset[int]) -> None:
        """Accept for exactly these slots, besides our own. Accepted connections stay with this process to their end."""
        for slot in self._accepting.keys() - slots:
            ended = self._accepting.pop(slot)
            self._server.servers.remove(ended)  # type: ignore[arg-type]
            ended.close()
        for slot in slots - self._accepting.keys() - {self._inherited.slot}:
            if not self._server.should_exit:
                self._accepting[slot] = accept_from(self._inherited.listener(slot), self._server)
