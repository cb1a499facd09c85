"""`tiergate admin-key`: back into a platform with nothing but its database."""

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from gateway.clock import utc_now
from gateway.database import open_sessions
from gateway.domain.audit.models import AuditEntry
from gateway.domain.keys.keyring import Keyring
from gateway.domain.principal import Principal
from gateway.domain.tenants.models import Tenant
from gateway.domain.tenants.service import create_tenant
from gateway.http.errors import Forbidden
from gateway.peppers import Peppers
from tests.support.cli import refusal, tiergate
from tests.support.gateways import copy_database

PEPPER = "a-pepper-that-is-long-enough"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    copy_database(tmp_path / "tiergate.db")
    return tmp_path


async def principal_of(data_dir: Path, key: str) -> Principal:
    async with open_sessions(f"sqlite:///{data_dir / 'tiergate.db'}") as sessions:
        return await Keyring(sessions, peppers=Peppers(PEPPER)).authenticate_key(key)


async def test_the_key_is_printed_once_and_administers_the_platform(data_dir: Path) -> None:
    environment = {"TIERGATE_KEY_PEPPER": PEPPER, "TIERGATE_DATA_DIR": str(data_dir)}
    first = tiergate("admin-key", env=environment)
    assert (first.returncode, first.stderr) == (0, ""), first
    second = json.loads(tiergate("admin-key", "--name", " on call ", "--json", env=environment).stdout)
    one, two = await principal_of(data_dir, first.stdout.strip()), await principal_of(data_dir, second["key"])
    assert one.is_platform_admin and two.is_platform_admin
    assert (one.tenant_id, one.tenant_name, second["name"]) == (two.tenant_id, "platform", "on call")
    async with open_sessions(f"sqlite:///{data_dir / 'tiergate.db'}") as sessions, sessions() as session:
        entries = list(await session.scalars(select(AuditEntry.action)))
    assert entries == ["key.admin", "key.admin"]


async def test_a_suspended_platform_and_a_customer_of_that_name_are_no_obstacle(data_dir: Path) -> None:
    async with open_sessions(f"sqlite:///{data_dir / 'tiergate.db'}") as sessions:
        await create_tenant(sessions, None, name="platform", tier="free", now=utc_now())
    environment = {"TIERGATE_KEY_PEPPER": PEPPER, "TIERGATE_DATA_DIR": str(data_dir)}
    key = tiergate("admin-key", env=environment).stdout.strip()
    platform = await principal_of(data_dir, key)
    assert platform.tenant_name.startswith("platform ")
    async with open_sessions(f"sqlite:///{data_dir / 'tiergate.db'}") as sessions, sessions.begin() as session:
        tenant = await session.get_one(Tenant, platform.tenant_id)
        tenant.suspended_at = utc_now()
    with pytest.raises(Forbidden):
        await principal_of(data_dir, key)
    tiergate("admin-key", env=environment)
    assert (await principal_of(data_dir, key)).is_platform_admin


async def test_the_pepper_and_the_database_of_up_are_found_in_its_directory(data_dir: Path) -> None:
    kept = {"worker_key": "w", "key_pepper": PEPPER, "admin_key": "a", "valkey_password": "v"}
    (data_dir / "keys.json").write_text(json.dumps(kept))
    elsewhere = {"TIERGATE_KEY_PEPPER": "x" * 20, "TIERGATE_DATABASE_URL": "sqlite:////no/such/file"}
    made = tiergate("admin-key", "--data-dir", str(data_dir), env=elsewhere)
    assert (await principal_of(data_dir, made.stdout.strip())).is_platform_admin


def test_what_is_missing_is_one_line(tmp_path: Path) -> None:
    data_dir = {"TIERGATE_DATA_DIR": str(tmp_path)}
    assert "TIERGATE_KEY_PEPPER" in refusal("admin-key", env=data_dir)
    environment = {**data_dir, "TIERGATE_KEY_PEPPER": PEPPER}
    assert "there is no file" in refusal("admin-key", env=environment, exit_code=1)
    (tmp_path / "tiergate.db").touch()
    assert "tiergate migrate" in refusal("admin-key", env=environment, exit_code=1)
    assert "--name" in refusal("admin-key", "--name", "a\u200bb", env=environment)
