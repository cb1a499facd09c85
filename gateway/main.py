"""The gateway process: the server, its background loops, and an orderly shutdown."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager

import uvicorn

from gateway.app import create_asgi
from gateway.garbage import OBJECTS_A_CONNECTION, OBJECTS_A_REQUEST, GarbageCollector
from gateway.http.acceptor import accept_from
from gateway.http.connection import connections_through
from gateway.http.draining import serve_last_requests
from gateway.http.front_door import Bounds, FrontDoor
from gateway.http.open_files import FILES_A_STREAM, RESERVED, connections_for, raise_open_files
from gateway.inference.probes import measured_here
from gateway.inference.turn_away import make_turn_away
from gateway.metering.folders import restoring_folder
from gateway.metrics import Metrics
from gateway.private_folder import make_private
from gateway.processes.inheritance import Inherited
from gateway.processes.listeners import bind
from gateway.processes.parent_link import ParentLink
from gateway.resources import open_services
from gateway.services import Services, without_siblings
from gateway.settings import CONFIG_EXIT_CODE, ConfigError, GatewaySettings

_log = logging.getLogger(__name__)

LAST_REQUESTS_S = 1.0
"""How long a leaving process, one of several, still takes requests on its existing connections."""


def run(settings: GatewaySettings, *, inherited: Inherited | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Bad configuration is one line on stderr and exit code 2.

    inherited: set if this process is one of several.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    try:
        check_data_dir(settings)
        listener = bind(settings) if inherited is None else inherited.listener(inherited.slot)
    except ConfigError as error:
        return _refuse_to_start(error)
    try:
        uvicorn_loop = uvicorn.Config("", loop="auto", log_config=None).get_loop_factory()
        with asyncio.Runner(loop_factory=uvicorn_loop) as runner:
            runner.run(serve(settings, listener, inherited=inherited, on_started=_collect_garbage))
    except ConfigError as error:
        return _refuse_to_start(error)
    except ExceptionGroup as group:
        _log.critical("the gateway ends because a part of it failed", exc_info=group)
        return 1
    finally:
        listener.close()
    return 0


def _collect_garbage(server: uvicorn.Server, services: Services) -> None:
    connections, metrics = server.server_state.connections, services.metrics

    def num_in_use() -> int:
        return OBJECTS_A_CONNECTION * len(connections) + OBJECTS_A_REQUEST * metrics.num_in_flight

    GarbageCollector(num_in_use).start(asyncio.get_running_loop())


async def serve(
    settings: GatewaySettings,
    listener: socket.socket,
    *,
    inherited: Inherited | None = None,
    on_started: Callable[[uvicorn.Server, Services], None] | None = None,
) -> None:
    """Serve on `listener` until a signal; streams under way get `drain_s` to end. Raises ConfigError."""
    parent = await ParentLink.open(inherited) if inherited else None
    server = _Server(settings, parent)
    siblings = parent.add_siblings if parent else without_siblings
    async with AsyncExitStack() as stack:
        # Signals are caught until everything is closed: a second one must not cut the outbox's last write.
        signals = stack.enter_context(ExitStack())
        opening = open_services(settings, is_draining=lambda: server.should_exit, add_siblings=siblings)
        running = await stack.enter_async_context(opening)
        server.config.app = create_asgi(running.services)
        server.door.turn_away = make_turn_away(running.services)
        server.show_on(running.services.metrics)
        if on_started is not None:
            server.on_started = lambda: on_started(server, running.services)
        signals.enter_context(_stopping_on_signals(server, has_parent=parent is not None))
        async with asyncio.TaskGroup() as group:
            sweep = server.door.sweep_forever(server.server_state.connections)  # type: ignore[arg-type]
            loops = [group.create_task(loop) for loop in (*running.loops(), sweep)]
            if parent is not None:
                loops.append(group.create_task(parent.follow(server, lambda: measured_here(running.services))))
            await server.serve(sockets=[listener])
            await end_tasks(loops)
        if parent is not None:
            await parent.close(measured_here(running.services))


async def end_tasks(tasks: Sequence[asyncio.Task[None]], *, patience_s: float = 0.5) -> None:
    """Cancel repeatedly until all tasks have ended: a library may mistake a cancellation for its own and swallow it."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=patience_s)


def check_data_dir(settings: GatewaySettings) -> None:
    """Create the directory if missing, and make it private.

    Raises ConfigError if it cannot be created, made private or written, or if a restore into it was interrupted."""
    try:
        make_private(settings.data_dir)
    except OSError as error:
        raise ConfigError(f"TIERGATE_DATA_DIR: cannot use {settings.data_dir}: {error.strerror}") from error
    if not os.access(settings.data_dir, os.W_OK | os.X_OK):
        raise ConfigError(f"TIERGATE_DATA_DIR: {settings.data_dir} is not writable")
    if restoring_folder(settings.data_dir).exists():
        raise ConfigError(
            f"TIERGATE_DATA_DIR: a restore into {settings.data_dir} was cut; run `tiergate restore` again"
        )


class _Server(uvicorn.Server):
    """uvicorn behind our front door and without its signal handling, because we close resources after the server."""

    on_started: Callable[[], None] | None = None

    def __init__(self, settings: GatewaySettings, parent: ParentLink | None) -> None:
        self.door = FrontDoor(_bounds(settings))
        self._parent = parent
        super().__init__(
            uvicorn.Config(
                _not_ready,
                http=connections_through(self.door),  # type: ignore[arg-type]
                ws="none",
                # Explicit, because uvicorn cannot detect it: our application is a plain function returning a coroutine.
                interface="asgi3",
                # uvicorn would trust X-Forwarded-For from this machine; `trusted_proxies` decides that instead.
                proxy_headers=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=settings.drain_s,
            )
        )

    def show_on(self, metrics: Metrics) -> None:
        metrics.num_connections = lambda: len(self.server_state.connections)
        metrics.show(
            "tiergate_front_door_refusals",
            "Connections and requests refused before any of our code saw them, by why",
            "reason",
            lambda: {reason.lower().replace(" ", "_"): count for reason, count in self.door.refused.items()},
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for listener in sockets or []:
            accept_from(listener, self)
        if self.on_started is not None:
            self.on_started()
        if self._parent is not None:
            self._parent.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._parent is not None:
            # Connections not accepted yet are served by another process: the parent's listeners stay open.
            self._parent.leave()
            for listening in self.servers:
                listening.close()
            await serve_last_requests(self.server_state, grace_s=LAST_REQUESTS_S, is_hurried=lambda: self.force_exit)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bounds(settings: GatewaySettings) -> Bounds:
    """The front door's bounds. Raises ConfigError if there are not enough open files for `max_connections`."""
    most = connections_for(raise_open_files())
    if settings.max_connections is not None and settings.max_connections > most:
        raise ConfigError(
            f"TIERGATE_MAX_CONNECTIONS: at most {most}, since a stream takes {FILES_A_STREAM} open files of those that"
            f" `ulimit -Hn` allows, and {RESERVED} are kept for the rest"
        )
    return Bounds(
        max_connections=settings.max_connections or most,
        head_s=settings.head_timeout_s,
        body_s=settings.body_timeout_s,
        keep_alive_s=settings.keep_alive_s,
        stalled_s=settings.stalled_client_s,
    )


async def _not_ready(*_: object) -> None:
    raise AssertionError("replaced before the server starts")


@contextmanager
def _stopping_on_signals(server: uvicorn.Server, *, has_parent: bool) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    caught = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}

    def stop() -> None:
        # A second signal does not wait for streams. But a child may get each signal twice, from its parent and from a
        # sender that signals the whole group, so for a child only the parent decides whether to hurry.
        server.force_exit = server.should_exit and not has_parent
        server.should_exit = True

    for number in caught - {signal.SIGHUP}:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, _ignore_hangup)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def _ignore_hangup() -> None:
    _log.warning("SIGHUP is ignored: only a gateway of several processes can replace them without refusing connections")


def _refuse_to_start(error: ConfigError) -> int:
    print(f"tiergate gateway: {error}", file=sys.stderr)  # noqa: T201
    return CONFIG_EXIT_CODE
