"""A real gateway on a free port, in this process, with a new SQLite database and a real Valkey."""

import asyncio
import atexit
import functools
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import uvicorn

from gateway.main import serve
from gateway.metering.folders import list_folders
from gateway.metering.journal import Journal
from gateway.processes.listeners import bind
from gateway.services import Services
from gateway.settings import GatewaySettings
from migrations.run import migrate
from protocol.usage import UsageEvent

ADMIN_KEY = "tg-adminkey-" + "a" * 40
WORKER_KEY = "worker-key-of-the-tests"
DEADLINE_S = 30.0


@dataclass(frozen=True)
class Gateway:
    origin: str
    services: Services
    server: uvicorn.Server
    admin: httpx.AsyncClient

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    async def make_key(self, *, tier: str = "enterprise", scopes: tuple[str, ...] = ("inference",)) -> str:
        """The key of a new tenant."""
        tenant = await self.post("/tenants", {"name": f"tenant-{uuid4().hex[:12]}", "tier": tier})
        made = await self.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": list(scopes)})
        return str(made["key"])

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            # On a machine that is slow for a moment a gateway may not have been able to check the key.
            while (reply := await self.admin.post(path, json=body)).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(float(reply.headers["retry-after"]))
        assert reply.status_code == 201, reply.text
        created: dict[str, Any] = reply.json()
        return created

    def client(self, key: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.base_url, headers={"Authorization": f"Bearer {key}"}, timeout=DEADLINE_S)


def make_settings(folder: Path, redis_url: str, **fields: Any) -> GatewaySettings:
    given = {
        "port": 0,
        "data_dir": folder / "gateway",
        "redis_url": redis_url,
        "key_pepper": "pepper-of-the-tests",
        "bootstrap_admin_key": ADMIN_KEY,
        "worker_key": WORKER_KEY,
        "drain_s": 5,
        # Generous, since the machine that runs the tests may be busy.
        "redis_deadline_ms": 5000,
    }
    return GatewaySettings(**(given | fields))


def copy_database(path: Path) -> None:
    """Make a new, migrated database. Not for the thread of an event loop, since Alembic starts a loop of its own."""
    assert not path.with_name(f"{path.name}-wal").exists(), f"somebody has {path} open"
    shutil.copyfile(_migrated(), path)


@functools.cache
def _migrated() -> Path:
    """A new database, migrated once for all tests of this process."""
    path = Path(tempfile.mkdtemp(prefix="tiergate-tests-")) / "template.db"
    atexit.register(shutil.rmtree, path.parent)
    migrate(f"sqlite+aiosqlite:///{path}")
    return path


@asynccontextmanager
async def running_gateway(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    if settings.database_url == "":
        await asyncio.to_thread(copy_database, settings.data_dir / "tiergate.db")
    with closing(bind(settings)) as listener:
        async with _serving(settings, listener) as gateway:
            yield gateway


@asynccontextmanager
async def _serving(settings: GatewaySettings, listener: socket.socket) -> AsyncIterator[Gateway]:
    started: asyncio.Future[tuple[uvicorn.Server, Services]] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(
            serve(settings, listener, on_started=lambda *both: started.set_result(both)), name="gateway"
        )
        await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE_S)
        if serving.done():
            serving.result()
        server, services = started.result()
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        async with httpx.AsyncClient(base_url=f"{origin}/admin/v1", headers=headers, timeout=DEADLINE_S) as admin:
            try:
                yield Gateway(origin, services, server, admin)
            finally:
                server.should_exit = True
                await asyncio.wait_for(serving, DEADLINE_S)


async def declare(gateway: Gateway, model_id: str, *, pool: str, context_window: int = 512) -> None:
    """Declare a model with a price."""
    await gateway.post("/models", {"id": model_id, "pool": pool, "context_window": context_window})
    await gateway.post("/prices", {"model_id": model_id, "prompt_nanousd": 100, "completion_nanousd": 400})


def durable_events(gateway: Gateway) -> list[UsageEvent]:
    """The closed events in the gateway's outboxes on disk."""
    events = []
    for folder in list_folders(gateway.services.settings.data_dir):
        journal = Journal.open(folder, must_exist=True)
        events += [closed.event for closed in journal.read_closed(100_000)]
        journal.close()
    return events


async def eventually(condition: Callable[[], object]) -> None:
    """Poll `condition`, which watches another process or a loop, until it holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
