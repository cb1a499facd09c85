"""Revisions on SQLite; PostgreSQL's run in tests/gateway/test_postgres.py."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy.exc import NoSuchTableError

from migrations.run import alembic_config, migrate


def test_revision_3_keeps_what_there_is_and_finds_the_platforms_tenant(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'db.sqlite'}"
    migrate(url, "0002")
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as file:
        file.executescript("""
            INSERT INTO tenants VALUES ('a', 'acme', 'free', '2026-01-01', NULL);
            INSERT INTO tenants VALUES ('b', 'renamed', 'pro', '2026-01-01', NULL);
            INSERT INTO api_keys VALUES ('k', 'b', 'n', 'abcdefgh', x'00', '["platform-admin"]', '2026-01-01', NULL);
            INSERT INTO audit_log VALUES ('l', '2026-01-01', NULL, 'b', 'key.bootstrap', 'k', '{}');
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
            INSERT INTO webhooks VALUES ('w', 'a', 'https://example.com/', '["ping"]', '2026-01-01');
        """)
        command.downgrade(alembic_config(url), "0007")
        assert file.execute("SELECT amount_nanousd FROM credit_entries").fetchall() == [(5,)]
        migrate(url)
        assert file.execute("SELECT name FROM leases ORDER BY name").fetchall() == [
            ("adapters",),
            ("budget-alerts",),
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
