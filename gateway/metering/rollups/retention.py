"""How long ClickHouse keeps events and rollups: `TIERGATE_USAGE_*_KEPT_DAYS`, applied to the tables as TTLs."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from clickhouse_connect.driver.client import Client


class RetentionSettings(Protocol):
    @property
    def usage_events_kept_days(self) -> int | None: ...
    @property
    def usage_hours_kept_days(self) -> int | None: ...
    @property
    def usage_days_kept_days(self) -> int | None: ...


@dataclass(frozen=True)
class Retention:
    """In days; None: unlimited."""

    events_days: int | None = None
    hours_days: int | None = None
    days_days: int | None = None

    @classmethod
    def of(cls, settings: RetentionSettings) -> "Retention":
        return cls(settings.usage_events_kept_days, settings.usage_hours_kept_days, settings.usage_days_kept_days)

    def oldest_event(self, now: datetime) -> datetime | None:
        """The first hour whose events are all still kept; None: events never expire."""
        return None if self.events_days is None else _next_day(now - timedelta(days=self.events_days))

    def oldest_hour(self, now: datetime) -> datetime | None:
        """The first day whose hours are all still kept; None: hours never expire."""
        return None if self.hours_days is None else _next_day(now - timedelta(days=self.hours_days))


_TABLES = {"usage_events": "timestamp", "usage_hours": "start", "usage_days": "start"}


def apply_retention(client: Client, retention: Retention) -> None:
    """Change the tables' TTLs where they differ. Parts are dropped whole, once all of their rows have expired."""
    wanted = (retention.events_days, retention.hours_days, retention.days_days)
    for (table, column), days in zip(_TABLES.items(), wanted, strict=True):
        found = client.query(
            "SELECT extract(create_table_query, 'toIntervalDay\\\\((\\\\d+)\\\\)') FROM system.tables"
            " WHERE database = currentDatabase() AND name = {table:String}",
            parameters={"table": table},
        ).result_rows
        there = found[0][0] if found else ""
        if days is not None and there != str(days):
            client.command(f"ALTER TABLE {table} MODIFY SETTING ttl_only_drop_parts = 1")
            client.command(f"ALTER TABLE {table} MODIFY TTL toDateTime({column}) + toIntervalDay({int(days)})")
        elif days is None and there:
            client.command(f"ALTER TABLE {table} REMOVE TTL")


def _next_day(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
