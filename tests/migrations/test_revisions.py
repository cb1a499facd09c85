"""Revisions on SQLite; PostgreSQL's run in tests/gateway/test_postgres.py."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy.exc import NoSuchTableError

from gateway.database import open_sessions
from gateway.domain.audit.verification import Anchor, BrokenChain, verify
from gateway.peppers import Peppers
from migrations.run import alembic_config, migrate


def test_revision_3_keeps_what_there_is_and_finds_the_platforms_tenant(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url, "0002")
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.executescript("""
            INSERT INTO tenants VALUES ('a', 'acme', 'free', '2026-01-01', NULL);
            INSERT INTO tenants VALUES ('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'renamed', 'pro', '2026-01-01', NULL);
            INSERT INTO api_keys VALUES ('k', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'n', 'abcdefgh', x'00',
                '["platform-admin"]', '2026-01-01', NULL);
            INSERT INTO audit_log VALUES ('cccccccccccccccccccccccccccccccc', '2026-01-01', NULL,
                'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'key.bootstrap', 'k', '{}');
            INSERT INTO models VALUES ('m', 'small', 5, 'chat', '2026-01-01');
            INSERT INTO prices VALUES ('v', 'm', 1, 1, 1, '2026-01-01', '2026-01-01');
        """)
        migrate(url)
        command.check(alembic_config(url))
        tenants = "SELECT name, is_platform FROM tenants ORDER BY id"
        assert file.execute(tenants).fetchall() == [("acme", 0), ("renamed", 1)]
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []
        file.execute("UPDATE tenants SET deleted_at = '2026-02-02' WHERE id = 'a'")
        file.execute("DELETE FROM models")
        file.commit()
        command.downgrade(alembic_config(url), "0002")
        assert file.execute("SELECT name FROM tenants ORDER BY id").fetchall() == [("acme (deleted a)",), ("renamed",)]
        assert file.execute("SELECT count(*) FROM api_keys").fetchone() == (1,)


def test_a_revision_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url, "0002")
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        schema = "SELECT name FROM sqlite_master ORDER BY name"
        before = file.execute(schema).fetchall()
        # What the revision comes to last.
        file.execute("ALTER TABLE prices RENAME TO hidden")
        with pytest.raises(NoSuchTableError):
            migrate(url)
        file.execute("ALTER TABLE hidden RENAME TO prices")
        assert file.execute(schema).fetchall() == before
    migrate(url)


def test_revision_4_keeps_prices_both_ways(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url, "0003")
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.execute("INSERT INTO prices VALUES ('v', 'm', 1, 2, 3, '2026-01-01', '2026-01-01')")
        file.commit()
        migrate(url, "0004")
        assert file.execute("SELECT completion_nanousd, minimum_nanousd FROM prices").fetchall() == [(3, 0)]
        command.downgrade(alembic_config(url), "0003")
        assert file.execute("SELECT * FROM prices").fetchall() == [("v", "m", 1, 2, 3, "2026-01-01", "2026-01-01")]


def test_revision_7_goes_back_even_with_final_invoices(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url)
    command.check(alembic_config(url))
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.executescript("""
            INSERT INTO tenants (id, name, tier, created_at) VALUES ('a', 'acme', 'free', '2026-01-01');
            INSERT INTO invoices VALUES ('i', 'invoice', 'final', 'INV-1', 'a', '', 'UTC', '2026-01-01', '2026-02-01',
                NULL, '2026-02-01', 0, '', 0, 1, 0, 1, 0, 1, NULL, '2026-02-01', '2026-02-01');
            INSERT INTO credit_entries VALUES ('c', 'a', '2026-01-01', 'grant', 5, NULL, '');
        """)
        with pytest.raises(sqlite3.IntegrityError, match="never change"):
            file.execute("DELETE FROM credit_entries")
        file.rollback()
        command.downgrade(alembic_config(url), "0005")
        assert file.execute("SELECT name FROM locks ORDER BY name").fetchall() == [("admins",), ("names",)]
        assert file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall() == []
        migrate(url)
        assert file.execute("SELECT count(*) FROM invoices").fetchone() == (0,)


def test_revision_8_keeps_invoices_when_webhooks_go(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url)
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.executescript("""
            INSERT INTO tenants (id, name, tier, created_at) VALUES ('a', 'acme', 'free', '2026-01-01');
            INSERT INTO credit_entries VALUES ('c', 'a', '2026-01-01', 'grant', 5, NULL, '');
            INSERT INTO webhooks (id, tenant_id, url, events, created_at)
                VALUES ('w', 'a', 'https://example.com/', '["ping"]', '2026-01-01');
        """)
        command.downgrade(alembic_config(url), "0007")
        assert file.execute("SELECT amount_nanousd FROM credit_entries").fetchall() == [(5,)]
        migrate(url)
        assert file.execute("SELECT name FROM leases ORDER BY name").fetchall() == [
            ("adapters",),
            ("budget-alerts",),
            ("erasures",),
            ("files",),
            ("webhooks",),
        ]


def test_revision_12_keeps_adapters_that_workers_have_both_ways(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url, "0011")
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.executescript("""
            INSERT INTO models VALUES ('m', 'small', 5, 'chat', '2026-01-01');
            INSERT INTO adapters VALUES ('a', NULL, 'pirate', '2026-01-01');
            INSERT INTO adapter_variants VALUES ('a', 'm', 'p');
        """)
        migrate(url)
        command.check(alembic_config(url))
        variants = "SELECT worker_name, digest, version, status FROM adapter_variants"
        assert file.execute(variants).fetchall() == [("p", None, 1, "ready")]
        file.executescript("""
            INSERT INTO adapter_artifacts VALUES ('d', 1, 4, 2, '{}', '2026-01-01', NULL, 0);
            INSERT INTO adapters VALUES ('b', NULL, 'stored', '2026-01-01');
            INSERT INTO adapter_variants VALUES ('b', 'm', 'sha256:d', 'd', 2, 'ready', NULL, '2026-01-01');
        """)
        command.downgrade(alembic_config(url), "0011")
        assert file.execute("SELECT name FROM adapters").fetchall() == [("pirate",)]
        assert file.execute("SELECT worker_name FROM adapter_variants").fetchall() == [("p",)]


def test_revision_14_comes_and_goes_with_tools_in_it(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url)
    command.check(alembic_config(url))
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.executescript("""
            INSERT INTO server_tools VALUES ('t', NULL, 'weather', 'd', '{}', 'https://example.com/', NULL, NULL, 1.0,
                1, 1, 1, '2026-01-01', '2026-01-01', 1);
        """)
        command.downgrade(alembic_config(url), "0013")
        assert file.execute("SELECT name FROM sqlite_master WHERE name LIKE '%server_tools%'").fetchall() == []
        migrate(url)
        assert file.execute("SELECT count(*) FROM server_tools").fetchone() == (0,)


def test_revision_15_keeps_what_keys_could_read_and_goes_back_without_widening_one(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url, "0014")
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.executescript("""
            INSERT INTO tenants (id, name, tier, created_at)
                VALUES ('00000000000000000000000000000001', 'acme', 'free', '2026-01-01');
            INSERT INTO api_keys VALUES ('00000000000000000000000000000002', '00000000000000000000000000000001', 'n',
                'abcdefgh', x'00', '["inference"]', '2026-01-01', NULL);
            UPDATE tiers SET context_tokens = 5 WHERE name = 'pro';
        """)
        migrate(url, "0015")
        tiers = "SELECT name, context_tokens, retired_at FROM tiers ORDER BY name"
        assert file.execute(tiers).fetchall() == [("enterprise", 131072, None), ("free", 32768, None), ("pro", 5, None)]
        assert file.execute("SELECT scopes, limits FROM api_keys").fetchall() == [('["inference", "usage"]', None)]
        file.executescript("""
            UPDATE tenants SET limits = '{"concurrency": 1}', user_limits = '{"concurrency": 1}';
            INSERT INTO end_users VALUES ('u', '00000000000000000000000000000001', 'alice', '{}', '2026-01-01');
            INSERT INTO api_keys (id, tenant_id, name, prefix, secret_hash, scopes, created_at, previous_prefix,
                previous_until, limits) SELECT '00000000000000000000000000000003', tenant_id, 'rotated', 'b', x'01',
                scopes, created_at, 'c', '2026-01-01', '{"concurrency": 1}' FROM api_keys;
            INSERT INTO api_keys (id, tenant_id, name, prefix, secret_hash, scopes, created_at, allowed_networks)
                SELECT '00000000000000000000000000000004', tenant_id, 'restricted', 'd', x'01', scopes, created_at,
                '["10.0.0.0/8"]' FROM api_keys WHERE name = 'n';
        """)
        command.downgrade(alembic_config(url), "0014")
        kept = "SELECT name, scopes, revoked_at IS NULL FROM api_keys ORDER BY id"
        assert file.execute(kept).fetchall() == [
            ("n", '["inference"]', 1),
            ("rotated", '["inference"]', 1),
            ("restricted", '["inference"]', 0),
        ]
        migrate(url)
        command.check(alembic_config(url))
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []


def test_revision_19_takes_old_audit_rows_into_the_chain_both_ways(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url, "0018")
    rows = [
        (f"{number:032x}", f"2026-01-01 00:00:0{number}.000000", f'{{"a": "\u00e9", "b":  {number}}}')
        for number in range(9)
    ]
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        insert = "INSERT INTO audit_log VALUES (?, ?, NULL, NULL, 'tier.change', 'free', ?)"
        file.executemany(insert, [*reversed(rows)])
        file.commit()
        migrate(url)
        command.check(alembic_config(url))
        chained = file.execute("SELECT id, at, detail FROM audit_log ORDER BY position").fetchall()
        assert chained == rows
        last = file.execute("SELECT hash FROM audit_log ORDER BY position DESC").fetchone()[0]
        asyncio.run(_verify(url, Anchor(9, last)))
        file.execute("UPDATE audit_log SET detail = '{}' WHERE position = 4")
        file.commit()
        with pytest.raises(BrokenChain) as found:
            asyncio.run(_verify(url, Anchor(9, last)))
        assert found.value.position == 4
        command.downgrade(alembic_config(url), "0018")
        assert file.execute("SELECT count(*) FROM audit_log").fetchone() == (9,)


async def _verify(url: str, since: Anchor) -> None:
    async with open_sessions(url) as sessions:
        await verify(sessions, peppers=Peppers("pepper-of-the-tests"), since=since)


def test_revision_29_comes_and_goes_with_guardrails_in_it(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url)
    command.check(alembic_config(url))
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.executescript("""
            INSERT INTO guardrails VALUES ('g', NULL, 'words', 'https://example.com/', NULL, NULL, 'both', '[]', 2000,
                'closed', 500, 1, '2026-01-01', '2026-01-01', 1);
        """)
        command.downgrade(alembic_config(url), "0028")
        assert file.execute("SELECT name FROM sqlite_master WHERE name LIKE '%guardrails%'").fetchall() == []
        migrate(url)
        assert file.execute("SELECT count(*) FROM guardrails").fetchone() == (0,)
