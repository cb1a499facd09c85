"""Accepts all waiting connections at once. libuv, and so `loop.create_server`, accepts only one connection per
iteration of the event loop.

On a busy loop, whose iterations are slow, connections would wait in the kernel for seconds. Neither the loop's lag nor
the number of requests under way shows them there, so under overload requests would be answered late instead of refused.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

_log = logging.getLogger(__name__)

BACKLOG = 2048
ACCEPTS_A_TURN = 512
"""Per iteration of the event loop, at 40 µs each. Bounded because open connections wait meanwhile."""
_PAUSE_S = 0.5
_NOT_NOW = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def accept_from(listener: socket.socket, server: uvicorn.Server) -> "Acceptor":
    """Accept connections until the acceptor is closed or `server` stops. `server` must have started to serve."""
    config = server.config
    # Any of uvicorn's protocol classes, called as uvicorn itself calls it.
    make: Any = config.http_protocol_class
    acceptor = Acceptor(listener, partial(make, config=config, server_state=server.server_state, app_state={}))
    # The server closes all of these when it stops.
    server.servers.append(acceptor)  # type: ignore[arg-type]
    return acceptor


class Acceptor:
    """Accepts from `listener` until `close`, which closes the listener too."""

    def __init__(self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        # If the socket is closed already, its descriptor may have been reused.
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def wait_closed(self) -> None:
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NOT_NOW:
                    self._wait(error)
                    return
                # This client left before it was accepted (accept(2)).
                continue
            connection.setblocking(False)
            opening = self._loop.create_task(self._open(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            connection.close()

    def _wait(self, error: OSError) -> None:
        """Pause accepting, because retrying at once would take up every iteration of the loop."""
        _log.warning("cannot accept connections: %s", error.strerror)
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._listener, self._accept)
