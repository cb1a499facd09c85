"""Alembic revisions, run by `migrate`; `clickhouse/` holds the DDL of ClickHouse."""
