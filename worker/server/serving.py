"""Runs the engine, uvicorn and the heartbeat together, and drains before the end."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from worker import library_pages
from worker.server.app import create_app
from worker.server.health import Readiness
from worker.server.replica import Replica

if TYPE_CHECKING:
    from worker.registration import Heartbeat

log = logging.getLogger("tiergate.worker")
_KEEP_ALIVE_S = 75
"""Longer than HTTP clients keep idle connections, so that none is closed while a request is on its way."""
_CLOSE_GRACE_S = 2
_WATCH_S = 1.0


async def serve(
    replica: Replica,
    listener: socket.socket,
    *,
    heartbeat: "Heartbeat | None",
    stop: asyncio.Event,
    drain_grace_s: float,
) -> None:
    """Serves until `stop` is set, and then until all requests are finished or `drain_grace_s` has passed. Raises
    OSError when it cannot listen."""
    readiness = Readiness()
    server = _make_server(replica, readiness)
    async with contextlib.AsyncExitStack() as resources:
        replica.engine.start()
        resources.callback(replica.ledger.close)
        if replica.fetched is not None:
            resources.callback(replica.fetched.close)
        if replica.grammars is not None:
            resources.callback(replica.grammars.close)
        resources.push_async_callback(replica.engine.stop)
        if heartbeat is not None:
            resources.push_async_callback(heartbeat.close)
        async with asyncio.TaskGroup() as loops:
            serving = loops.create_task(server.serve(sockets=[listener]))
            announcing = loops.create_task(_announce(replica, readiness, heartbeat))
            watching = loops.create_task(_watch_engine(replica))
            await stop.wait()
            await _drain(replica, drain_grace_s)
            server.should_exit = True
            await serving
            announcing.cancel()
            watching.cancel()


class EngineBroken(Exception):
    """The step loop ended, because of a bug of ours or a failed GPU; only a new process helps."""


async def watch(is_broken: Callable[[], bool]) -> None:
    """Raises EngineBroken, so that the process ends and is restarted instead of refusing everything."""
    while True:
        # Polled, since the flag is set in the engine's thread and nothing here can be awaited.
        if is_broken():
            raise EngineBroken("the engine's loop broke; see the log")
        await asyncio.sleep(_WATCH_S)


async def _watch_engine(replica: Replica) -> None:
    try:
        await watch(lambda: replica.engine.is_broken)
    finally:
        # Gives the clients whose requests failed time to read the reason.
        if replica.engine.is_broken:
            await _is_idle_within(replica, _CLOSE_GRACE_S)


async def _announce(replica: Replica, readiness: Readiness, heartbeat: "Heartbeat | None") -> None:
    """Gateways learn of this worker only once it has proven that it can answer."""
    started_at = time.monotonic()
    await readiness.prove(replica)
    log.info("ready: %s (first completion %.2f s)", replica.served_name, time.monotonic() - started_at)
    await asyncio.to_thread(library_pages.release)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(replica.engine.take_memory())
        if heartbeat is not None:
            tasks.create_task(heartbeat.run())


async def _drain(replica: Replica, grace_s: float) -> None:
    """Refuses new requests from now on; gateways learn of it from the load report."""
    replica.is_draining = True
    log.info("draining %d requests", replica.activity.num_active)
    if not await _is_idle_within(replica, grace_s):
        log.warning("giving up %d requests after %.0f s", replica.activity.num_active, grace_s)
        # Before the connections are closed, so that an abandoned answer ends with an error.
        await replica.engine.stop()
        await _is_idle_within(replica, _CLOSE_GRACE_S)


async def _is_idle_within(replica: Replica, limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            await replica.activity.wait_idle()
    except TimeoutError:
        return False
    return True


def _make_server(replica: Replica, readiness: Readiness) -> uvicorn.Server:
    config = uvicorn.Config(
        create_app(replica, readiness),
        lifespan="off",
        ws="none",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSE_GRACE_S,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Leaves signals to the process, which drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
