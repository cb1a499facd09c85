"""A worker that serves on a real socket, in a thread with an event loop of its own."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from worker.main import listen
from worker.server.replica import Replica
from worker.server.replica_loading import load_replica
from worker.server.serving import serve
from worker.settings import WorkerSettings

DEADLINE_S = 30


@dataclass(frozen=True)
class RunningWorker:
    origin: str
    replica: Replica
    api_key: str | None
    stop: "threading.Event"
    uds: Path | None = None

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.Client(base_url=self.origin, headers=headers, timeout=DEADLINE_S, transport=_transport(self.uds))

    def load(self) -> dict[str, Any]:
        with self.client() as client:
            return client.get("/load").raise_for_status().json()  # type: ignore[no-any-return]


@contextmanager
def running_worker(model: Path, **options: Any) -> Iterator[RunningWorker]:
    """Yields once the worker is ready; afterwards asserts that it ended cleanly with all blocks free."""
    options = {"name": "tiny", "num_threads": 1, "drain_grace_s": 5.0} | options
    settings = WorkerSettings(model=model, port=0, **options)
    with listen(settings) as listener:
        yield from _run(settings, listener)


def _transport(uds: Path | None) -> httpx.HTTPTransport:
    # The socket is already bound, so the first call waits in the backlog, or is refused only for a moment.
    return httpx.HTTPTransport(retries=10, uds=None if uds is None else str(uds))


def _run(settings: WorkerSettings, listener: socket.socket) -> Iterator[RunningWorker]:
    replica = load_replica(settings)
    origin = "http://worker" if settings.uds else f"http://127.0.0.1:{listener.getsockname()[1]}"
    stop, ended = threading.Event(), threading.Event()

    async def main() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=lambda: (stop.wait(), loop.call_soon_threadsafe(stopping.set)), daemon=True).start()
        await serve(replica, listener, heartbeat=None, stop=stopping, drain_grace_s=settings.drain_grace_s)
        ended.set()

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    try:
        with httpx.Client(transport=_transport(settings.uds), timeout=DEADLINE_S) as client:
            client.get(f"{origin}/ready").raise_for_status()
        yield RunningWorker(origin, replica, settings.api_key, stop, settings.uds)
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    assert ended.is_set()
    load = replica.load_report()
    assert (load.num_running, load.num_waiting, load.num_free_blocks) == (0, 0, load.num_blocks)
