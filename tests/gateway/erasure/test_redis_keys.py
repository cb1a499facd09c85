"""What an erasure needs in order to read an end user's stored responses."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from gateway.database import open_sessions
from gateway.domain.principal import Principal
from gateway.domain.sessions.service import change_policy
from gateway.domain.tenants.service import create_tenant
from gateway.erasure.redis_keys import forget_sessions
from gateway.erasure.subject import Subject, Waits
from gateway.peppers import Peppers
from tests.support.gateways import copy_database

ADMIN = Principal(uuid4(), "platform", uuid4(), "pro", frozenset({"platform-admin"}))
NOW = datetime(2026, 3, 14, tzinfo=UTC)


async def test_an_erasure_waits_while_the_key_of_the_tenants_sessions_cannot_be_read(tmp_path: Path) -> None:
    await asyncio.to_thread(copy_database, tmp_path / "db.sqlite")
    async with open_sessions(f"sqlite:///{tmp_path / 'db.sqlite'}") as sessions:
        tenant = await create_tenant(sessions, ADMIN, name="acme", tier="pro", now=NOW)
        await change_policy(sessions, ADMIN, tenant.id, is_encrypted=True, pepper="removed", now=NOW)
        stores: Any = SimpleNamespace(sessions=sessions, clickhouse_url=None, peppers=Peppers("current"))
        subject = Subject(uuid4(), tenant.id, "alice", uuid4(), b"salt", NOW, {})
        with pytest.raises(Waits, match="TIERGATE_KEY_PEPPER: the key of the tenant's sessions"):
            await forget_sessions(stores, subject)
