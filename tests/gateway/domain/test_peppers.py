"""A pepper is replaced: keys move when they are used, what is sealed in bulk, and nothing is lost on the way."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker

from gateway.clock import utc_now
from gateway.database import Sessions, open_sessions
from gateway.domain.audit.verification import BrokenChain, verify
from gateway.domain.erasures.models import Erasure
from gateway.domain.erasures.names import seal_name, unseal_name
from gateway.domain.erasures.seals import seal_of
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.rehashing import Rehasher
from gateway.domain.keys.service import make_admin_key, revoke_key, rotate_key
from gateway.domain.people.service import Admitted, Terms, begin_persons_visit, id_token_of
from gateway.domain.peppers.origin import note_origin
from gateway.domain.peppers.reports import pepper_of
from gateway.domain.peppers.sealed import SEALED
from gateway.domain.peppers.settling import settle
from gateway.domain.peppers.standing import (
    AUDIT,
    KEYS,
    REPORTS,
    Standing,
    keys_to_move,
    missing_told,
    num_under,
    standing_of,
)
from gateway.domain.principal import Principal
from gateway.domain.sessions.models import SessionPolicy
from gateway.domain.sessions.service import change_policy, terms_of
from gateway.domain.tables import Base
from gateway.domain.tenants.service import create_tenant
from gateway.domain.tools.models import ServerTool
from gateway.domain.tools.sealing import unseal
from gateway.domain.tools.service import create_tool
from gateway.domain.visits.models import Visit
from gateway.domain.webhooks.models import Webhook
from gateway.domain.webhooks.secrets import secret_of
from gateway.domain.webhooks.service import create_webhook
from gateway.http.errors import Unauthenticated
from gateway.peppers import Peppers
from tests.gateway.domain.test_tools import FIELDS
from tests.support.gateways import copy_database

PEPPER = "pepper-of-the-tests"
NEW = "the-pepper-that-follows"
BEFORE = Peppers(PEPPER)
ANNOUNCED = Peppers(PEPPER, upcoming=NEW)
SWITCHED = Peppers(NEW, old=(PEPPER,))
AFTER = Peppers(NEW)
NUM_TOOLS = 5
MOVED = {"webhooks": 1, "tools": NUM_TOOLS, "ID tokens": 1, "erased users": 1, "session keys": 1}
NOW = datetime(2026, 3, 14, tzinfo=UTC)


def under(sessions: Sessions, peppers: Peppers) -> Sessions:
    """As a process with these peppers opens the same database."""
    return async_sessionmaker(sessions.kw["bind"], expire_on_commit=False, info={"peppers": peppers})


async def move(sessions: Sessions, keyring: Keyring) -> None:
    await Rehasher(sessions, keyring.take_outdated).write()


async def let_in(sessions: Sessions, peppers: Peppers, key: str) -> Keyring:
    keyring = Keyring(sessions, peppers=peppers)
    await keyring.authenticate_key(key)
    return keyring


async def rename_table(sessions: Sessions, old: str, new: str) -> None:
    async with sessions.begin() as session:
        await (await session.connection()).exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")


async def standing(sessions: Sessions, peppers: Peppers) -> Standing:
    async with sessions() as session:
        return await standing_of(session, peppers, now=NOW)


async def make_key(sessions: Sessions, name: str, pepper: str = PEPPER) -> tuple[ApiKey, str]:
    return await make_admin_key(sessions, name=name, pepper=pepper, now=NOW)


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    await asyncio.to_thread(copy_database, tmp_path / "db.sqlite")
    async with open_sessions(f"sqlite:///{tmp_path / 'db.sqlite'}", peppers=BEFORE) as opened:
        yield opened


@dataclass
class Scene:
    """An administrator's key, a person's visit, a webhook, a tenant's session key and tools with credentials, all of
    the old pepper."""

    key: str
    admin: Principal
    tenant_id: UUID
    webhook_id: UUID
    webhook_secret: str
    session_key: bytes | None


async def log_in(sessions: Sessions) -> None:
    """A person, for a visit with an ID token."""
    admitted = Admitted("https://id.example", "olga", None, ["platform-admin"], None, None, "an.id.token")
    terms = Terms(address="", browser="", expires_at=NOW + timedelta(days=1), idle=timedelta(hours=1))
    await begin_persons_visit(sessions, admitted, terms, state="s", until=NOW, pepper=PEPPER, now=NOW)


def erasure(tenant_id: UUID) -> Erasure:
    """One that has a report, and still an end user's name."""
    made_id = uuid4()
    digest = hashlib.sha256(b"report").digest()
    return Erasure(
        id=made_id,
        tenant_id=tenant_id,
        sealed_user=seal_name("alice", erasure_id=made_id, pepper=PEPPER),
        is_of_user=True,
        created_at=NOW,
        progress={},
        steps=[],
        sha256=digest.hex(),
        seal=seal_of(digest, pepper=PEPPER),
    )


async def made_before(sessions: Sessions) -> Scene:
    _, key = await make_key(sessions, "admin")
    admin = await Keyring(sessions, peppers=BEFORE).authenticate_key(key)
    tenant = await create_tenant(sessions, admin, name="acme", tier="pro", now=NOW)
    webhook = await create_webhook(
        sessions, admin, tenant_id=tenant.id, url="https://example.com/", events=["ping"], pepper=PEPPER, now=NOW
    )
    await log_in(sessions)
    terms = await change_policy(sessions, admin, tenant.id, is_encrypted=True, pepper=PEPPER, now=NOW)
    for number in range(NUM_TOOLS):
        await create_tool(
            sessions,
            admin,
            tenant_id=tenant.id,
            fields={**FIELDS, "name": f"tool-{number}"},
            credential=("authorization", "s3cret"),
            pepper=PEPPER,
            now=NOW,
        )
    async with sessions.begin() as session:
        session.add(erasure(tenant.id))
    secret, session_key = secret_of(webhook, peppers=BEFORE), terms.key(tenant.id, peppers=BEFORE)
    return Scene(key, admin, tenant.id, webhook.id, secret, session_key)


async def require_all(sessions: Sessions, scene: Scene, peppers: Peppers) -> None:
    """All that is sealed is read with these peppers, and is what it was."""
    async with sessions() as session:
        webhook = await session.get_one(Webhook, scene.webhook_id)
        assert secret_of(webhook, peppers=peppers) == scene.webhook_secret
        report = (await session.scalars(select(Erasure))).one()
        assert report.sealed_user is not None
        assert unseal_name(report.sealed_user, erasure_id=report.id, peppers=peppers) == "alice"
        assert pepper_of(report, peppers) is not None
        policy = await session.get_one(SessionPolicy, scene.tenant_id)
        assert terms_of(policy).key(scene.tenant_id, peppers=peppers) == scene.session_key
        for visit in await session.scalars(select(Visit)):
            assert id_token_of(visit, peppers=peppers) == "an.id.token"
        for tool in await session.scalars(select(ServerTool)):
            assert tool.sealed_credential is not None
            assert unseal(tool.sealed_credential, tool_id=tool.id, url=tool.url, peppers=peppers) == "s3cret"


async def test_a_key_moves_when_it_is_used_and_all_gateways_take_it_all_the_time(sessions: Sessions) -> None:
    used, (_, unused) = (await make_key(sessions, "used"))[1], await make_key(sessions, "unused")
    await move(sessions, await let_in(sessions, ANNOUNCED, used))
    await let_in(sessions, BEFORE, used)
    await move(sessions, await let_in(sessions, SWITCHED, used))
    for peppers in (ANNOUNCED, SWITCHED, AFTER):
        keyring = await let_in(sessions, peppers, used)
        assert keyring.take_outdated() == [], "a gateway that was not switched yet takes nothing back"
    with pytest.raises(Unauthenticated):
        await let_in(sessions, AFTER, unused)
    async with sessions() as session:
        assert [key.name for key in await keys_to_move(session, SWITCHED, now=NOW)] == ["unused"]


async def test_a_keyring_that_holds_a_key_sees_it_move(sessions: Sessions) -> None:
    _, key = await make_key(sessions, "k")
    keyring = await let_in(sessions, SWITCHED, key)
    await move(sessions, keyring)
    keyring.forget()
    await keyring.authenticate_key(key)
    assert keyring.take_outdated() == []


async def test_a_busy_key_moves_once_the_database_writes_again(sessions: Sessions) -> None:
    _, key = await make_key(sessions, "busy")
    keyring = Keyring(sessions, peppers=SWITCHED, clock=lambda: 0.0)
    rehasher = Rehasher(sessions, keyring.take_outdated)
    await keyring.authenticate(f"Bearer {key}")
    await rename_table(sessions, "api_keys", "hidden")
    for _ in range(2):
        with pytest.raises(OperationalError):
            await rehasher.write()
    await rename_table(sessions, "hidden", "api_keys")
    assert keyring.known(f"Bearer {key}") and keyring.take_outdated() == [], "a known key is not verified again"
    await rehasher.write()
    await let_in(sessions, AFTER, key)


async def test_while_keys_cannot_be_written_the_newest_wait(sessions: Sessions) -> None:
    keys = [(await make_key(sessions, f"busy {number}"))[1] for number in range(3)]
    keyring = Keyring(sessions, peppers=SWITCHED)
    rehasher = Rehasher(sessions, keyring.take_outdated, max_waiting=2)
    for key in keys:
        await keyring.authenticate_key(key)
    await rehasher.write()
    with pytest.raises(Unauthenticated):
        await let_in(sessions, AFTER, keys[0])
    for key in keys[1:]:
        await let_in(sessions, AFTER, key)


async def test_the_secret_before_a_rotation_moves_too_and_one_rotated_meanwhile_stays(sessions: Sessions) -> None:
    scene = await made_before(sessions)
    key, first = await make_key(sessions, "k")
    keyring = await let_in(sessions, SWITCHED, first)
    _, second, _ = await rotate_key(
        sessions, scene.admin, key.id, overlap=timedelta(days=3650), pepper=NEW, now=utc_now()
    )
    await move(sessions, keyring)
    await let_in(sessions, AFTER, first)
    await let_in(sessions, AFTER, second)


async def test_what_is_sealed_moves_at_once_and_stays_what_it_was(sessions: Sessions) -> None:
    scene = await made_before(sessions)
    await require_all(sessions, scene, SWITCHED)
    switched = under(sessions, SWITCHED)
    settled = await settle(switched, SWITCHED, now=NOW)
    assert settled.moved == MOVED | {"erasure reports": 1} and settled.unreadable == {}
    await require_all(sessions, scene, AFTER)
    assert (await settle(switched, SWITCHED, now=NOW)).moved == {}


async def test_settling_that_was_stopped_goes_on_where_it_was(sessions: Sessions) -> None:
    scene = await made_before(sessions)

    class Stopped(Exception):
        pass

    def stop(num_moved: int) -> None:
        if num_moved == 3:
            raise Stopped

    with pytest.raises(Stopped):
        await settle(under(sessions, SWITCHED), SWITCHED, now=NOW, on_progress=stop)
    await require_all(sessions, scene, SWITCHED)
    assert sum((await settle(under(sessions, SWITCHED), SWITCHED, now=NOW)).moved.values()) == NUM_TOOLS + 5 - 3
    await require_all(sessions, scene, AFTER)


async def test_what_no_pepper_opens_is_told_and_left(sessions: Sessions) -> None:
    await made_before(sessions)
    found = await settle(under(sessions, AFTER), AFTER, now=NOW)
    assert found.moved == {} and found.unreadable == MOVED


async def test_the_audit_log_holds_across_the_rotation_whoever_writes(sessions: Sessions) -> None:
    announced, switched = under(sessions, ANNOUNCED), under(sessions, SWITCHED)
    for opened, pepper in ((announced, PEPPER), (switched, NEW), (announced, PEPPER), (switched, NEW)):
        await make_key(opened, "k", pepper)
        for peppers in (ANNOUNCED, SWITCHED):
            await verify(sessions, peppers=peppers)
    assert (await verify(sessions, peppers=AFTER)).num_rows == 4, "no row says that a seal was broken"
    await make_key(announced, "k")
    with pytest.raises(BrokenChain):
        await verify(sessions, peppers=AFTER)
    await settle(switched, SWITCHED, now=NOW)
    assert (await verify(sessions, peppers=AFTER)).num_rows == 6


async def test_rows_of_versions_that_told_no_pepper_hang_on_the_one_that_sealed_the_log(sessions: Sessions) -> None:
    scene = await made_before(sessions)
    async with sessions.begin() as session:
        await session.execute(update(ApiKey).values(pepper_id=None))
        await session.execute(update(Webhook).values(sealed_secret=None))
    assert (await standing(sessions, SWITCHED))[KEYS] == {"old": 1}
    await note_origin(sessions, SWITCHED)
    assert (await standing(sessions, SWITCHED))[KEYS] == {"old": 1}
    await require_all(sessions, scene, SWITCHED)
    await move(sessions, await let_in(sessions, SWITCHED, scene.key))
    await let_in(sessions, AFTER, scene.key)


async def test_it_is_told_what_hangs_on_which_pepper_and_what_on_none_that_is_there(sessions: Sessions) -> None:
    scene = await made_before(sessions)
    revoked, _ = await make_key(sessions, "revoked")
    await revoke_key(sessions, scene.admin, revoked.id, now=NOW)
    found = await standing(sessions, SWITCHED)
    assert found == {
        KEYS: {"old": 1},
        "webhooks": {"old": 1},
        "tools": {"old": NUM_TOOLS},
        "ID tokens": {"old": 1},
        "guardrails": {},
        "session keys": {"old": 1},
        "erased users": {"old": 1},
        REPORTS: {"old": 1},
        AUDIT: {"old": 1},
    }
    assert num_under(found, "old") == NUM_TOOLS + 7 and num_under(await standing(sessions, BEFORE), "old") == 0
    assert num_under(await standing(sessions, ANNOUNCED), "current") == NUM_TOOLS + 7
    await move(sessions, await let_in(sessions, SWITCHED, scene.key))
    await settle(under(sessions, SWITCHED), SWITCHED, now=NOW)
    assert num_under(await standing(sessions, AFTER), "current") == NUM_TOOLS + 7
    assert num_under(await standing(sessions, ANNOUNCED), "upcoming") == NUM_TOOLS + 7
    await make_key(sessions, "late")
    assert "1 API keys, 1 audit log" in missing_told(await standing(sessions, AFTER))


def test_no_sealed_column_is_forgotten() -> None:
    columns = {
        (table.name, column.name)
        for table in Base.metadata.tables.values()
        for column in table.columns
        if column.name.startswith("sealed")
    }
    assert columns == {(each.table.__tablename__, each.column.key) for each in SEALED}
