"""The same tables and services on PostgreSQL."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from alembic import command
from sqlalchemy import text, update
from sqlalchemy.exc import DBAPIError

from gateway.clock import utc_now
from gateway.database import open_sessions
from gateway.domain.audit.verification import verify
from gateway.domain.invoices.models import InvoiceLine
from gateway.domain.invoices.service import Calculation, Terms, add_draft, finalize, get_invoice, grant_credit
from gateway.domain.keys.keyring import STALE_S, Keyring
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.service import bootstrap_admin_key, make_admin_key
from gateway.domain.people.service import Admitted, begin_persons_visit, end_visits_at_provider, visiting_principal
from gateway.domain.people.service import Terms as Visiting
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import create_tenant
from gateway.domain.visits.models import Visit
from gateway.http.errors import Conflict, Unauthenticated, Unavailable
from gateway.main import end_tasks
from gateway.metering.windows import Window
from gateway.peppers import Peppers
from migrations.run import alembic_config, migrate
from tests.support.freezing_proxy import freezing_proxy
from tests.support.gateways import ADMIN_KEY, eventually, make_settings, running_gateway
from tests.support.postgres import find_binaries, running_postgres
from tests.support.valkey import ValkeyProcess

BINARIES = find_binaries()
HEADER = f"Bearer {ADMIN_KEY}"
OLD = uuid4()
HOUR = timedelta(hours=1)


needs_postgres = pytest.mark.skipif(
    BINARIES is None and "CI" not in os.environ, reason="PostgreSQL is not installed (apt-get install postgresql)"
)


@needs_postgres
async def test_the_admin_plane_works_on_postgresql(tmp_path: Path, valkey: ValkeyProcess) -> None:
    assert BINARIES is not None, "PostgreSQL is not installed"
    with running_postgres(BINARIES) as url:
        await asyncio.to_thread(migrate, url)
        await asyncio.to_thread(command.check, alembic_config(url))
        async with running_gateway(make_settings(tmp_path, valkey.url, database_url=url)) as gateway:
            await gateway.post("/models", {"id": "m-7b", "pool": "small", "context_window": 512})
            await gateway.post("/prices", {"model_id": "m-7b", "prompt_nanousd": 1, "completion_nanousd": 2})
            adapter = {"name": "pirate", "variants": {"m-7b": "p"}}
            await gateway.post("/adapters", adapter)
            assert (await gateway.admin.post("/adapters", json=adapter)).status_code == 409
            async with gateway.client(await gateway.make_key()) as client:
                cards = (await client.get("/models")).json()["data"]
            assert {card["id"] for card in cards} == {"auto", "small", "m-7b", "pirate"}
            page = (await gateway.admin.get("/audit", params={"limit": 2})).json()
            rest = (await gateway.admin.get("/audit", params={"after": page["next"]})).json()
            actions = [entry["action"] for entry in page["data"] + rest["data"]]
        await asyncio.to_thread(command.downgrade, alembic_config(url), "base")
    assert actions == [
        "key.bootstrap",
        "model.declare",
        "price.add",
        "adapter.create",
        "tenant.create",
        "key.create",
    ]


@needs_postgres
async def test_keys_with_limits_come_and_go_on_postgresql(tmp_path: Path, valkey: ValkeyProcess) -> None:
    assert BINARIES is not None, "PostgreSQL is not installed"
    with running_postgres(BINARIES) as url:
        await asyncio.to_thread(migrate, url, "0014")
        async with open_sessions(url) as sessions, sessions.begin() as session:
            await session.execute(
                text("INSERT INTO tenants (id, name, tier, created_at) VALUES (:id, 'old', 'pro', now())"), {"id": OLD}
            )
            await session.execute(
                text(
                    "INSERT INTO api_keys (id, tenant_id, name, prefix, secret_hash, scopes, created_at) "
                    "VALUES (:id, :id, 'old', 'abcdefgh', '\\x00', '[\"inference\"]', now())"
                ),
                {"id": OLD},
            )
        await asyncio.to_thread(migrate, url)
        await asyncio.to_thread(command.check, alembic_config(url))
        async with open_sessions(url) as sessions:
            _, admin = await make_admin_key(sessions, name="admin", pepper="pepper-of-the-tests", now=utc_now())
        async with running_gateway(make_settings(tmp_path, valkey.url, database_url=url)) as gateway:
            gateway.admin.headers["Authorization"] = f"Bearer {admin}"
            limits = {"concurrency": 2}
            tenant = await gateway.post("/tenants", {"name": "acme", "tier": "pro", "limits": limits})
            await gateway.post("/users", {"tenant_id": tenant["id"], "user_id": "alice", "limits": limits})
            later = (utc_now() + timedelta(days=1)).isoformat()
            made = await gateway.post(
                "/keys",
                {
                    "tenant_id": tenant["id"],
                    "name": "k",
                    "expires_at": later,
                    "allowed_networks": ["127.0.0.0/8"],
                    "limits": limits,
                },
            )
            rotated = (await gateway.admin.post(f"/keys/{made['id']}/rotate", json={})).json()
            for key in (made["key"], rotated["key"]):
                async with gateway.client(key) as client:
                    answer = (await client.get("/limits", params={"user": "alice"})).json()
                scopes = {each["scope"].partition(":")[0] for each in answer["limits"]}
                assert scopes == {"tenant", "key", "user"}
            listed = {key["name"]: key for key in (await gateway.admin.get("/keys")).json()["data"]}
            assert listed["old"]["scopes"] == ["inference", "usage"]
        await asyncio.to_thread(command.downgrade, alembic_config(url), "0014")
        async with open_sessions(url) as sessions, sessions() as session:
            rows = (await session.execute(text("SELECT name, revoked_at IS NULL FROM api_keys ORDER BY name"))).all()
        assert [tuple(row) for row in rows] == [("admin", True), ("k", False), ("old", True)]
        await asyncio.to_thread(migrate, url)


@needs_postgres
async def test_people_log_in_at_the_same_time_on_postgresql() -> None:
    """As the same new person: each login is good for one visit."""
    assert BINARIES is not None, "PostgreSQL is not installed"
    peppers, now = Peppers("pepper-of-the-tests"), utc_now()
    admitted = Admitted(
        "https://id.example", "olga", "olga@example.com", ["platform-admin"], None, "sid", "an.id.token"
    )
    with running_postgres(BINARIES) as url:
        await asyncio.to_thread(migrate, url)
        async with open_sessions(url, peppers=peppers) as sessions:
            await make_admin_key(sessions, name="admin", pepper=peppers.current, now=now)
            visits = await asyncio.gather(
                *(
                    begin_persons_visit(
                        sessions,
                        admitted,
                        Visiting(address="::1", browser="b", expires_at=now + HOUR, idle=HOUR),
                        state=f"state-{number % 5}",
                        until=now + HOUR,
                        pepper=peppers.current,
                        now=now,
                    )
                    for number in range(10)
                ),
                return_exceptions=True,
            )
            begun = [each for each in visits if isinstance(each, Visit)]
            assert len(begun) == 5 and len([each for each in visits if isinstance(each, Conflict)]) == 5, visits
            [person_id] = {each.person_id for each in begun if each.person_id is not None}
            soon = now + HOUR / 2
            principal = await visiting_principal(sessions, person_id, begun[0].id, now=soon)
            assert principal is not None and principal.is_platform_admin
            assert await visiting_principal(sessions, person_id, begun[1].id, now=now + 2 * HOUR) is None
            ended = {"issuer": admitted.issuer, "subject": None, "provider_session": "sid"}
            assert await end_visits_at_provider(sessions, **ended, until=now, now=now) == 5
            assert await visiting_principal(sessions, person_id, begun[0].id, now=soon) is None
            await verify(sessions, peppers=peppers)


@needs_postgres
async def test_invoices_are_final_on_postgresql_too(tmp_path: Path, valkey: ValkeyProcess) -> None:
    assert BINARIES is not None, "PostgreSQL is not installed"
    now = utc_now()
    month = Window(now - timedelta(days=60), now - timedelta(days=30))
    with running_postgres(BINARIES) as url:
        await asyncio.to_thread(migrate, url)
        async with open_sessions(url) as sessions:
            tenant = await create_tenant(sessions, None, name="acme", tier="pro", now=now)
            admin = Principal(tenant.id, "acme", tenant.id, "pro", frozenset({"platform-admin"}))
            await grant_credit(sessions, admin, tenant_id=tenant.id, amount_nanousd=5, note="n", now=now)
            line = InvoiceLine(
                position=1,
                description="d",
                month="2026-01",
                is_adjustment=False,
                model_id="m",
                adapter_id="",
                kind="input",
                unit_price_nanousd=2,
                num_requests=1,
                quantity=4,
                amount_nanousd=8,
            )
            draft = await add_draft(
                sessions,
                admin,
                tenant_id=tenant.id,
                terms=Terms("UTC", "", 0, "acme"),
                period_start=month.start,
                period_end=month.end,
                calculation=Calculation(uuid4(), 0, [line]),
                now=now,
            )
            await finalize(sessions, admin, draft.id, now=now)
            invoice = await get_invoice(sessions, admin, draft.id)
            assert (invoice.number, invoice.credit_nanousd, invoice.due_nanousd) == ("INV-000001", 5, 3)
            for statement in (
                "UPDATE invoices SET recipient = 'x'",
                "DELETE FROM invoices",
                "TRUNCATE invoices CASCADE",
                "UPDATE invoice_lines SET quantity = 1",
                "DELETE FROM invoice_lines",
                "INSERT INTO invoice_lines SELECT invoice_id, 2, description, month, is_adjustment, model_id, "
                "adapter_id, kind, 1, 1, 1, 1 FROM invoice_lines",
                "UPDATE credit_entries SET amount_nanousd = 10",
                "DELETE FROM credit_entries",
            ):
                async with sessions() as session:
                    with pytest.raises(DBAPIError, match="never change"):
                        await session.execute(text(statement))
        await asyncio.to_thread(command.downgrade, alembic_config(url), "0005")
        await asyncio.to_thread(migrate, url)


@needs_postgres
async def test_known_keys_outlive_a_postgresql_that_hangs_or_dies() -> None:
    assert BINARIES is not None, "PostgreSQL is not installed"
    now = 1000.0
    with running_postgres(BINARIES) as url:
        await asyncio.to_thread(migrate, url)
        async with open_sessions(url) as direct, freezing_proxy(int(url.rsplit(":", 1)[1].split("/")[0])) as proxy:
            await bootstrap_admin_key(direct, ADMIN_KEY, pepper="p", now=utc_now())
            _, other = await make_admin_key(direct, name="other", pepper="p", now=utc_now())
            through_proxy = f"postgresql://tiergate@127.0.0.1:{proxy.port}/tiergate"
            async with open_sessions(through_proxy) as sessions:
                keyring = Keyring(sessions, peppers=Peppers("p"), clock=lambda: now)
                await keyring.authenticate(HEADER)
                refreshing = asyncio.create_task(keyring.refresh_forever())
                for break_it in (proxy.freeze, proxy.cut):
                    break_it()
                    now += 60
                    await eventually(lambda: keyring.known(HEADER))
                    assert await keyring.authenticate(HEADER)
                    with pytest.raises(Unavailable):
                        await keyring.authenticate_key(other)
                    proxy.thaw()
                    now += STALE_S
                    await eventually(lambda: keyring.known(HEADER))
                assert await keyring.authenticate_key(other)
                async with direct.begin() as session:
                    await session.execute(update(ApiKey).values(revoked_at=utc_now()))
                await eventually(lambda: keyring.known(HEADER) is None)
                with pytest.raises(Unauthenticated):
                    await keyring.authenticate(HEADER)
                assert not refreshing.done()
                await end_tasks([refreshing])
