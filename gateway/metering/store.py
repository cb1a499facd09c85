"""Writes usage events into ClickHouse, at least once; ClickHouse deduplicates them."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, OperationalError

from gateway.clock import utc_now
from gateway.metering.drain import TargetUnavailable
from gateway.metering.schema import connect_migrated
from protocol.counts import GatewayCounts
from protocol.usage import UsageEvent

TABLE: Final = "usage_events"
EVENT_FIELDS = UsageEvent.__struct_fields__
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class StoreUnavailable(TargetUnavailable):
    """ClickHouse is unreachable or cannot take rows at the moment; the same rows may pass later."""


class InsertRefused(Exception):
    """ClickHouse answered, but took none of the rows: one of them or its own state is the cause; `args[0]` says why."""


class UsageStore:
    """Connects on first use, and again after a failure."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Client | None = None

    def insert(self, events: Sequence[UsageEvent]) -> None:
        """Returns once ClickHouse has the rows on disk. Raises StoreUnavailable or InsertRefused.

        The rows are sent as JSON: msgspec writes it and ClickHouse reads it many times faster than Python turns events
        into columns.
        """
        if events:
            stamp = utc_now().isoformat(timespec="milliseconds").encode()
            body = b"\n".join([_json_row(event, stamp) for event in events])
            self._call(
                lambda client: client.raw_insert(
                    TABLE, _COLUMNS, insert_block=body, fmt="JSONCompactEachRow", settings=_SETTINGS
                )
            )

    def insert_counts(self, counts: Sequence[GatewayCounts]) -> None:
        """As `insert`, for counts."""
        for table, columns, rows in _count_rows(counts):
            if rows:
                self._insert_into(table, columns, rows)

    def insert_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """As `insert`, for rows of EVENT_FIELDS and `version`; a higher version replaces a lower one."""
        if rows:
            inserted_at = utc_now()
            columns = [*EVENT_FIELDS, "version", "inserted_at"]
            stamped = [(*row, inserted_at) for row in rows]
            self._insert_into(TABLE, columns, stamped)

    def _insert_into(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        # async_insert would acknowledge rows that are still in memory.
        self._call(lambda client: client.insert(table, rows, columns, settings={"async_insert": 0}))

    def select(self, sql: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Raises StoreUnavailable, or InsertRefused if ClickHouse rejects the query, as with an outdated table."""
        return self._call(lambda client: client.query(sql, parameters=dict(parameters))).result_rows

    def _call(self, call: Callable[[Client], T]) -> T:
        client = self._prepared()
        try:
            return call(client)
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
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _prepared(self) -> Client:
        try:
            if self._client is None:
                self._client = connect_migrated(self._url)
            return self._client
        except (ClickHouseError, OSError) as error:
            self.close()
            raise StoreUnavailable(_first_line(error)) from error


_UNWRITABLE = (ValueError, TypeError, OverflowError, struct.error)
"""Raised by the driver for a value that does not fit its column."""
# Among several rows of one request the highest version counts. A row of a gateway that died (`lost`) knows least. A
# request that was reported to the client as failed is not billed, even if an earlier row, which could not be made
# durable in time, says that it succeeded, and even if that row was rerated since (16 to 254,
# gateway/billing/rerating.py).
_VERSIONS = {"lost": 0, "error": 255}
_SETTINGS = {
    # async_insert would acknowledge rows that are still in memory.
    "async_insert": 0,
    "date_time_input_format": "best_effort",
    # Parsing the same rows with several threads costs a small machine more.
    "input_format_parallel_parsing": 0,
}


def version_of(event: UsageEvent) -> int:
    """Among several rows of one request the one with the highest version counts."""
    return _VERSIONS.get(event.status, 1)


_COLUMNS = ("version", "inserted_at", *EVENT_FIELDS)


def _json_row(event: UsageEvent, stamp: bytes) -> bytes:
    """The event's values in the order of _COLUMNS."""
    return b'[%d,"%s",' % (version_of(event), stamp) + _encode(msgspec.structs.astuple(event))[1:]


def _count_rows(counts: Iterable[GatewayCounts]) -> Iterator[tuple[str, Sequence[str], list[Sequence[Any]]]]:
    """Name, columns and rows of each table."""
    refusals: list[Sequence[Any]] = []
    admissions: list[Sequence[Any]] = []
    for each in counts:
        for refused in each.refusals:
            minute = datetime.fromtimestamp(refused.minute_s, UTC)
            identity = (refused.tenant_id, minute, refused.key_id, refused.limit, refused.status, each.gateway)
            refusals.append((*identity, refused.count))
        for counted in each.admissions:
            hour = datetime.fromtimestamp(counted.hour_s, UTC)
            num_admitted, num_closed = counted.num_admitted, counted.num_closed
            version = num_admitted + num_closed
            admissions.append((counted.tenant_id, hour, each.gateway, num_admitted, num_closed, version))
    yield "refusals", ("tenant_id", "minute", "key_id", "limit", "status", "gateway", "count"), refusals
    yield "admissions", ("tenant_id", "hour", "gateway", "num_admitted", "num_closed", "version"), admissions


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
