"""Alembic revisions, run by `tiergate migrate`; `clickhouse/` holds the DDL of ClickHouse."""
