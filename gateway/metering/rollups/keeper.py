"""Keeps the rollups up to date: finds the hours that got events, late ones included, and recomputes them whole.

A sweep finds rows by their insertion time, so it needs no state of its own: rows that a consumer inserted before it
died are found by the next one. Every consumer may sweep; one that finds a recent sweep skips its own.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from gateway.clock import utc_now
from gateway.metering.rollups import recompute
from gateway.metering.rollups.retention import Retention, RetentionSettings, apply_retention
from gateway.metering.schema import connect_migrated

_log = logging.getLogger(__name__)

SWEEP_S = 10.0
IDLE_SWEEP_S = 60.0
"""Without new events a sweep is recorded this often, which tells readers that the rollups are up to date."""
OVERLAP = timedelta(seconds=120)
"""How far each sweep looks back again: rows carry the consumer's clock, and become visible only once inserted."""
REST_FACTOR = 5
"""After a sweep, pause for at least this multiple of its duration: inserting events has priority."""
MAX_ROWS = 250_000
"""Rows per recomputation, which delays insertions. A single hour may have more."""
DEADLINE_S = 600
"""Long enough for an hour with more than MAX_ROWS rows."""
MAX_HOURS = 96
"""Hours per recomputation: their starts are sent in the URL."""
_SWEEP = "hours"


class KeeperSettings(RetentionSettings, Protocol):
    @property
    def clickhouse_url(self) -> str | None: ...


@contextmanager
def keeping_rollups(settings: KeeperSettings, stop: threading.Event) -> Iterator[None]:
    """Sweep in a separate thread; leaving sets `stop`."""
    assert settings.clickhouse_url is not None
    keeper = RollupKeeper(settings.clickhouse_url, Retention.of(settings))
    thread = threading.Thread(target=keeper.run, args=(stop,), name="rollups")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        keeper.close()


class FreshHour(NamedTuple):
    start: datetime
    num_rows: int


class RollupKeeper:
    """Used by one thread at a time. Methods raise ClickHouseError or OSError."""

    def __init__(self, url: str, retention: Retention | None = None) -> None:
        self._url = url
        self._retention = retention or Retention()
        self._client: Client | None = None

    def run(self, stop: threading.Event) -> None:
        """Sweep until `stop` is set; while ClickHouse is unavailable, keep retrying."""
        pause_s = 0.0
        while not stop.wait(pause_s):
            began_s = time.monotonic()
            try:
                self.sweep_if_due(now=utc_now())
            except (ClickHouseError, OSError) as error:
                # ClickHouse is unreachable, or reachable but unable to, e.g. for lack of memory: that is a warning.
                is_refused = isinstance(error, DatabaseError) and error.code is not None
                _log.log(logging.WARNING if is_refused else logging.DEBUG, "rollups wait for ClickHouse: %s", error)
                self.close()
            except Exception:
                # Rollups can be rebuilt from events at any time, so their failure must not stop events from shipping.
                _log.exception("rollups could not be brought up to date, still trying")
                self.close()
            pause_s = max(SWEEP_S, REST_FACTOR * (time.monotonic() - began_s))

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def sweep_if_due(self, *, now: datetime) -> None:
        swept_at = self._last()[1]
        if swept_at is None or now - swept_at >= timedelta(seconds=SWEEP_S / 2):
            self.sweep(now=now)

    def sweep(self, *, now: datetime) -> int:
        """Recompute every hour that got events since the last sweep; returns how many. The first sweep takes all."""
        seen_until, swept_at = self._last()
        since_ms = 0 if seen_until is None else _millis(seen_until - OVERLAP)
        rows = self._connected().query(recompute.fresh_hours(), parameters={"since_ms": since_ms}).result_rows
        self._recompute([FreshHour(_utc(hour), num_rows) for hour, num_rows, _ in rows], now=now, swept_at=swept_at)
        # A consumer whose clock is ahead must not hide the rows of other consumers.
        newest_ms = min(max([newest for *_, newest in rows], default=0), _millis(now))
        is_news = seen_until is None or newest_ms > _millis(seen_until)
        if is_news or swept_at is None or now - swept_at >= timedelta(seconds=IDLE_SWEEP_S):
            seen = datetime.fromtimestamp(newest_ms / 1000, UTC) if is_news else seen_until
            columns = ["name", "seen_until", "swept_at"]
            self._connected().insert("usage_rollup_sweeps", [[_SWEEP, seen, now]], column_names=columns)
        return len(rows)

    def rebuild(self, start: datetime, end: datetime, *, now: datetime) -> Iterator[tuple[int, int]]:
        """Recompute every hour from `start` until `end`; yields (hours done, hours in total) after each part."""
        parameters = {"start": start, "end": end}
        rows = self._connected().query(recompute.hours_between(), parameters=parameters).result_rows
        hours = [FreshHour(_utc(hour), num_rows) for hour, num_rows in rows]
        num_done = 0
        for part in _parts(hours):
            self._recompute(part, now=now, swept_at=None)
            num_done += len(part)
            yield num_done, len(hours)

    def _recompute(self, hours: Sequence[FreshHour], *, now: datetime, swept_at: datetime | None) -> None:
        """Recompute `hours` and the days they belong to.

        Skips hours whose events and days whose hours have expired: they would become zero. A day is summed up only once
        it is over, not at every sweep; days that ended since the last sweep are summed up now."""
        client, oldest = self._connected(), self._retention.oldest_event(now)
        kept = [hour for hour in hours if oldest is None or hour.start >= oldest]
        for part in _parts(kept):
            client.command(recompute.recompute_hours(), parameters={"hours": [hour.start for hour in part]})
        oldest_hour = self._retention.oldest_hour(now)
        today = _day_of(now)
        days = {_day_of(hour.start) for hour in kept}
        if swept_at is not None:
            last_day = _day_of(swept_at)
            days |= {last_day + timedelta(days=i) for i in range((today - last_day).days)}
        for day in sorted(day for day in days if day < today and (oldest_hour is None or day >= oldest_hour)):
            client.command(recompute.recompute_day(), parameters={"day": day})

    def _last(self) -> tuple[datetime | None, datetime | None]:
        """`seen_until` and `swept_at` of the last sweep."""
        query = "SELECT seen_until, swept_at FROM usage_rollup_sweeps FINAL WHERE name = {name:String}"
        rows = self._connected().query(query, parameters={"name": _SWEEP}).result_rows
        return (rows[0][0], rows[0][1]) if rows else (None, None)

    def _connected(self) -> Client:
        if self._client is None:
            client = connect_migrated(self._url, deadline_s=DEADLINE_S)
            try:
                apply_retention(client, self._retention)
            except BaseException:
                client.close()
                raise
            self._client = client
        return self._client


def _parts(hours: Sequence[FreshHour]) -> Iterator[list[FreshHour]]:
    part: list[FreshHour] = []
    for hour in hours:
        is_full = len(part) == MAX_HOURS or sum(each.num_rows for each in part) + hour.num_rows > MAX_ROWS
        if part and is_full:
            yield part
            part = []
        part.append(hour)
    if part:
        yield part


def _day_of(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _utc(moment: datetime) -> datetime:
    """The driver returns UTC DateTime columns with or without a time zone."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
