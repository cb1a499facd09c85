"""Writing usage events into ClickHouse: at least once, deduplicated there."""

import struct
from collections.abc import Sequence
from datetime import UTC
from typing import Any, Final

import msgspec
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, OperationalError
from clickhouse_connect.driver.insert import InsertContext

from gateway.clock import utc_now
from gateway.metering.schema import connect_migrated
from protocol.usage import READABLE_VERSIONS, UsageEvent

TABLE: Final = "usage_events"
EVENT_FIELDS = UsageEvent.__struct_fields__


class StoreUnavailable(Exception):
    """ClickHouse is away or cannot take rows now; the same rows may pass later."""


class InsertRefused(Exception):
    """ClickHouse answered, and took none of the rows: one of them or its own state is the cause; `args[0]` says."""


class EventRejected(InsertRefused):
    """An event that cannot be a row, now or later: our own checks say so."""


class UsageStore:
    """Connects when first used, and again after a failure."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Client | None = None
        self._context: InsertContext | None = None

    def insert(self, events: Sequence[UsageEvent]) -> None:
        """Returns once ClickHouse has the rows on disk. Raises StoreUnavailable or InsertRefused."""
        self.insert_rows([_row(event) for event in events])

    def insert_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """The same with values of EVENT_FIELDS and `version`, of which a higher one replaces a lower."""
        if not rows:
            return
        client, context = self._prepared()
        inserted_at = utc_now()
        context.data = [(*row, inserted_at) for row in rows]
        try:
            # async_insert would acknowledge rows that are still in memory.
            client.insert(context=context, settings={"async_insert": 0})
        except (OperationalError, OSError) as error:
            self.close()
            raise StoreUnavailable(_first_line(error)) from error
        except (DatabaseError, *_UNWRITABLE) as error:
            raise InsertRefused(_first_line(error)) from error
        except ClickHouseError as error:
            self.close()
            raise StoreUnavailable(_first_line(error)) from error

    def prepare(self) -> None:
        """Connect and bring the tables up to date. Raises StoreUnavailable."""
        self._prepared()

    def close(self) -> None:
        client, self._client, self._context = self._client, None, None
        if client is not None:
            client.close()

    def _prepared(self) -> tuple[Client, InsertContext]:
        try:
            return self._connected()
        except (ClickHouseError, OSError) as error:
            self.close()
            raise StoreUnavailable(_first_line(error)) from error

    def _connected(self) -> tuple[Client, InsertContext]:
        if self._client is None or self._context is None:
            self._client = connect_migrated(self._url)
            self._context = self._client.create_insert_context(TABLE, [*EVENT_FIELDS, "version", "inserted_at"])
        return self._client, self._context


_UNWRITABLE = (ValueError, TypeError, OverflowError, struct.error)
"""What the driver raises for a value that it cannot put into its column."""
# Of several rows for one request the highest counts. A gateway that died knows least; what the client was told had
# failed is not billed, though an earlier verdict, which could not be made durable in time, may say that all was well,
# and may have been priced anew since (16 to 254, gateway/billing/rerating.py).
_VERSIONS = {"lost": 0, "error": 255}
_INT_RANGES = {
    **dict.fromkeys(("prompt_tokens", "cached_prompt_tokens", "completion_tokens"), (0, 2**64 - 1)),
    "cost_nanousd": (-(2**63), 2**63 - 1),
    "num_attempts": (0, 2**16 - 1),
}


def _row(event: UsageEvent) -> list[Any]:
    """The event's fields and its version. Raises EventRejected for what the columns cannot hold."""
    for name, (least, most) in _INT_RANGES.items():
        if not least <= getattr(event, name) <= most:
            raise EventRejected(f"{name} is {getattr(event, name)}")
    if event.timestamp.tzinfo is None:
        raise EventRejected("timestamp has no time zone")
    if event.schema_version not in READABLE_VERSIONS:
        raise EventRejected(f"schema_version is {event.schema_version}")
    values = msgspec.structs.asdict(event)
    values["steps_ms"] = msgspec.structs.astuple(event.steps_ms)
    values["price_lines"] = [msgspec.structs.astuple(line) for line in event.price_lines]
    values["timestamp"] = event.timestamp.astimezone(UTC)
    return [*(values[name] for name in EVENT_FIELDS), _VERSIONS.get(event.status, 1)]


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
