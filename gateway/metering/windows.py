"""Time ranges of usage queries: half-open, in UTC."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.http.errors import InvalidRequest

DEFAULT_SPAN = timedelta(hours=24)
_YEARS = range(2000, 2200)


@dataclass(frozen=True)
class Window:
    start: datetime
    end: datetime


def parse_window(start: str | None, end: str | None, *, now: datetime) -> Window:
    """The window from a client's `from` and `to`: ISO 8601 (UTC unless it has an offset) or Unix seconds.

    `to` defaults to now, `from` to 24 hours before `to`. Raises InvalidRequest naming the parameter.
    """
    # Includes a request that arrives right now.
    to = parse_moment(end, "to") if end is not None else now + timedelta(seconds=1)
    since = parse_moment(start, "from") if start is not None else to - DEFAULT_SPAN
    if since >= to:
        raise InvalidRequest("from must be before to", param="from")
    return Window(since, to)


def month_until(now: datetime) -> Window:
    """The calendar month of `now` in UTC, up to now."""
    start = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Window(start, now + timedelta(seconds=1))


def day_and_month(now: datetime) -> tuple[Window, Window]:
    """The whole calendar day and month of `now` in UTC."""
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    month = day.replace(day=1)
    return Window(day, day + timedelta(days=1)), Window(month, (month + timedelta(days=32)).replace(day=1))


def parse_moment(text: str, param: str) -> datetime:
    """Raises InvalidRequest naming `param`."""
    try:
        moment = _moment(text.strip())
    except (ValueError, OverflowError, OSError):
        raise InvalidRequest(
            f"{param}: {text[:40]!r} is no time; send ISO 8601 such as 2026-01-31T12:00:00Z, or Unix seconds",
            param=param,
        ) from None
    if moment.year not in _YEARS:
        raise InvalidRequest(f"{param}: the year {moment.year} is out of range", param=param)
    return moment


def _moment(text: str) -> datetime:
    if text.replace(".", "", 1).isdigit() and len(text.split(".")[0]) > 8:
        return datetime.fromtimestamp(float(text), UTC)
    # An unescaped `+` in the URL arrives as a space.
    moment = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
