"""Which table to read for each part of a time range: rollups for whole days and hours, events at the edges."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from gateway.metering.windows import Window

Table = Literal["usage_events", "usage_hours", "usage_days"]
Grain = Literal["day", "hour", "event"]
"""The finest resolution that a query needs."""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
YOUNG = timedelta(hours=1)
"""Hours that ended less than this ago still get events every second; they are read from the events themselves."""


@dataclass(frozen=True)
class Piece:
    table: Table
    window: Window


def split(window: Window, *, rolled_until: datetime | None, swept_at: datetime | None, grain: Grain) -> list[Piece]:
    """Pieces in time order, without gaps. `rolled_until`: every hour that ended by then is rolled up; None: no hour is.
    `swept_at`: every day that was over by then is rolled up."""
    if rolled_until is None or swept_at is None or grain == "event":
        return [Piece("usage_events", window)]
    start, end = _up(window.start, HOUR), min(_down(window.end, HOUR), _down(rolled_until, HOUR))
    if start >= end:
        return [Piece("usage_events", window)]
    cuts = [(window.start, "usage_events"), (start, "usage_hours"), (end, "usage_events")]
    first_day, last_day = _up(start, DAY), min(_down(end, DAY), _down(swept_at, DAY))
    if grain == "day" and first_day < last_day:
        cuts[2:2] = [(first_day, "usage_days"), (last_day, "usage_hours")]
    ends = [moment for moment, _ in cuts[1:]] + [window.end]
    pieces: list[Piece] = []
    for (begin, table), until in zip(cuts, ends, strict=True):
        if begin < until:
            pieces.append(Piece(table, Window(begin, until)))  # type: ignore[arg-type]
    return pieces


def rolled_until(swept_at: datetime | None, *, now: datetime) -> datetime | None:
    return None if swept_at is None else min(swept_at, now) - YOUNG


def _down(moment: datetime, step: timedelta) -> datetime:
    since_epoch = moment - _EPOCH
    return _EPOCH + since_epoch // step * step


def _up(moment: datetime, step: timedelta) -> datetime:
    floor = _down(moment, step)
    return floor if floor == moment else floor + step


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
