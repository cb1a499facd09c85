"""The worker process: one checkpoint served until a signal says to stop."""

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from protocol.load import LoadReport
from worker.settings import SettingsError, WorkerSettings

if TYPE_CHECKING:
    from worker.engine.engine import Engine
    from worker.engine.settings import EngineSettings
    from worker.registration import Heartbeat

    LoadEngine = Callable[[EngineSettings], Engine]

log = logging.getLogger("tiergate.worker")


def run(settings: WorkerSettings, *, load_engine: "LoadEngine | None" = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 2, with one line on stderr, after a failed start; 1 when
    the engine broke and only a new process helps. load_engine: used in place of `Engine.load`."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        if not settings.model.is_dir():
            raise SettingsError(f"--model: {settings.model} is not a folder")
        # Before the checkpoint is read, so that a port in use is reported at once and not after loading.
        with listen(settings) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            return loop.run(_serve(settings, listener, load_engine))
    except SettingsError as error:
        sys.stderr.write(f"tiergate worker: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


@contextmanager
def listen(settings: WorkerSettings) -> Iterator[socket.socket]:
    """The worker's bound socket; a Unix socket's file is removed when it is closed. Raises SettingsError."""
    if settings.uds is None:
        with bind(settings.host, settings.port) as listener:
            yield listener
        return
    with bind_unix(settings.uds) as listener:
        try:
            yield listener
        finally:
            settings.uds.unlink(missing_ok=True)


def bind_unix(path: Path) -> socket.socket:
    """A socket for this user only; replaces the file of a worker that is gone. Raises SettingsError naming the path."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise SettingsError(f"--uds: {path}: {reason}") from error
    return listener


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound to the port but does not listen yet. Raises SettingsError naming the port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingsError(f"--host: {host}: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _port_error(host, port, error) from error
    return listener


def _port_error(host: str, port: int, error: OSError) -> SettingsError:
    if error.errno == errno.EADDRINUSE:
        return SettingsError(f"--port: {port} on {host} is in use; stop what listens there or choose another port")
    return SettingsError(f"--port: cannot listen on {host}:{port}: {error.strerror or error}")


async def _serve(settings: WorkerSettings, listener: socket.socket, load_engine: "LoadEngine | None") -> int:
    # All that is imported and loaded here stays; searching it for garbage again and again took half a second or more.
    gc.disable()
    try:
        # Imported here: torch takes seconds to import, and a bad option or a port in use should be reported at once.
        from worker.server.replica_loading import load_replica
        from worker.server.serving import EngineBroken, serve

        replica = load_replica(settings) if load_engine is None else load_replica(settings, load_engine=load_engine)
        gc.freeze()
    finally:
        gc.enable()
    # While loading, a signal ends the process at once; from here on there are requests to finish.
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    url = settings.url or (f"unix:{settings.uds}" if settings.uds else _url_of(listener))
    heartbeat = _make_heartbeat(settings, url, replica.load_report)
    log.info("serving %s at %s", replica.served_name, url)
    try:
        await serve(replica, listener, heartbeat=heartbeat, stop=stop, drain_grace_s=settings.drain_grace_s)
    except* EngineBroken as errors:
        log.critical("%s", errors.exceptions[0])
    except* OSError as errors:
        # Two processes may bind one port as long as neither listens, so the second one finds out only now.
        first = errors.exceptions[0]
        assert isinstance(first, OSError)
        raise _port_error(settings.host, settings.port, first) from first
    return 1 if replica.engine.is_broken else 0


def _make_heartbeat(settings: WorkerSettings, url: str, report: Callable[[], LoadReport]) -> "Heartbeat | None":
    if settings.register_url is None or settings.api_key is None:
        return None
    # Imported here: a worker that does not register skips the import of redis, which takes a tenth of a second.
    from worker.registration import Heartbeat

    try:
        return Heartbeat(settings.register_url, url=url, worker_key=settings.api_key, report=report)
    except ValueError as error:
        raise SettingsError(f"--register: {error}") from error


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{_reachable(host)}:{port}"


def _reachable(host: str) -> str:
    """The host part of a URL; this machine's name for a wildcard address, to which nobody can connect."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
