"""Invoice periods: half-open, in UTC, at midnights of the tenant's time zone."""

import re
from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from gateway.http.errors import InvalidRequest
from gateway.metering.windows import Window

_MONTH = re.compile(r"(20\d\d|21\d\d)-(0[1-9]|1[0-2])")


def zone_of(name: str) -> ZoneInfo:
    """The zone of a tz database name such as `Europe/Berlin`. Raises InvalidRequest for any other name."""
    if name not in _zones():
        raise InvalidRequest(f"{name[:64]!r} is no time zone; send one such as Europe/Berlin or UTC", param="time_zone")
    return ZoneInfo(name)


def month_period(month: str, zone: ZoneInfo) -> Window:
    """The period of a month such as `2026-03`: from its first midnight in `zone` to the next month's first midnight.

    Raises InvalidRequest."""
    if not _MONTH.fullmatch(month):
        raise InvalidRequest("month: send one such as 2026-03", param="month")
    year, number = int(month[:4]), int(month[5:])
    return Window(_midnight(year, number, zone), _midnight(year + number // 12, number % 12 + 1, zone))


def _midnight(year: int, month: int, zone: ZoneInfo) -> datetime:
    """The first midnight of a month. If clocks skip or repeat it, both adjacent months still get the same instant."""
    return datetime(year, month, 1, tzinfo=zone).astimezone(UTC)


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())
