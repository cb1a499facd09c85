"""A real server with the dashboard and the usage routes over a real database and a real ClickHouse, for tests."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import uvicorn
from fastapi import FastAPI

from gateway.admin.usage import admin_router, router
from gateway.clock import utc_now
from gateway.dashboard.routes import dashboard_router
from gateway.database import open_sessions
from gateway.domain.adapters.service import create_adapter
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.service import bootstrap_admin_key, create_key, revoke_key
from gateway.domain.models.service import declare_model
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import create_tenant
from gateway.http.rendering import install_error_handlers
from gateway.metering.queries import UsageQueries
from gateway.peppers import Peppers
from migrations.run import migrate

MODEL = "a-model"
PEPPER = "a pepper for tests"
ADMIN_KEY = "tg-adminkey-0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Tenant:
    id: UUID
    key_id: UUID
    key: str
    adapter_id: UUID
    """The tenant's own adapter, named after its tier."""


@dataclass(frozen=True)
class Site:
    origin: str
    database_url: str
    admin_key: str
    acme: Tenant
    hobby: Tenant

    def revoke(self, tenant: Tenant) -> None:
        async def run() -> None:
            async with open_sessions(self.database_url) as sessions:
                admin = await Keyring(sessions, peppers=Peppers(PEPPER)).authenticate_key(ADMIN_KEY)
                await revoke_key(sessions, admin, tenant.key_id, now=utc_now())

        asyncio.run(run())


@contextmanager
def running_site(folder: Path, clickhouse_url: str | None) -> Iterator[Site]:
    database_url = f"sqlite+aiosqlite:///{folder / 'tiergate.db'}"
    migrate(database_url)
    acme, hobby = asyncio.run(_seed(database_url))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(_make_app(database_url, clickhouse_url), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Site(
                origin=f"http://127.0.0.1:{listening.getsockname()[1]}",
                database_url=database_url,
                admin_key=ADMIN_KEY,
                acme=acme,
                hobby=hobby,
            )
        finally:
            server.should_exit = True
            thread.join()


def _make_app(database_url: str, clickhouse_url: str | None) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        usage = UsageQueries(clickhouse_url)
        async with open_sessions(database_url) as sessions:
            keyring = Keyring(sessions, peppers=Peppers(PEPPER))
            app.state.services = SimpleNamespace(sessions=sessions, keyring=keyring, usage=usage, oidc=None)
            yield
        await usage.close()

    app = FastAPI(lifespan=lifespan)
    install_error_handlers(app)
    app.include_router(router)
    app.include_router(admin_router, prefix="/admin/v1")
    app.include_router(dashboard_router(peppers=Peppers(PEPPER)))
    return app


async def _seed(database_url: str) -> list[Tenant]:
    tenants = []
    async with open_sessions(database_url) as sessions:
        await bootstrap_admin_key(sessions, ADMIN_KEY, pepper=PEPPER, now=utc_now())
        admin: Principal = await Keyring(sessions, peppers=Peppers(PEPPER)).authenticate_key(ADMIN_KEY)
        now = utc_now()
        await declare_model(sessions, None, model_id=MODEL, pool="small", context_window=1024, kind="chat", now=now)
        for name, tier in (("acme", "enterprise"), ("hobby <b>", "free")):
            tenant = await create_tenant(sessions, admin, name=name, tier=tier, now=now)
            key, secret = await create_key(
                sessions, admin, tenant_id=tenant.id, name="test", scopes=["inference", "usage"], pepper=PEPPER, now=now
            )
            adapter = {"name": f"voice-of-{tier}", "variants": {MODEL: "voice"}}
            made = await create_adapter(sessions, admin, tenant_id=tenant.id, **adapter, now=now)
            tenants.append(Tenant(tenant.id, key.id, secret, made.id))
    return tenants
