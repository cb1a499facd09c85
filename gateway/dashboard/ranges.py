"""The time ranges that the console shows."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from gateway.dashboard.axes import HOUR_S, Axis, axis_of, bucket_start, num_buckets_until
from gateway.dashboard.zones import UTC_ZONE
from gateway.metering.windows import Window, parse_window

_MINUTE_S, _HOUR_S, _DAY_S = 60, HOUR_S, 86400
_MAX_BUCKETS = 62
_BUCKETS = (_MINUTE_S, 5 * _MINUTE_S, _HOUR_S, 3 * _HOUR_S, _DAY_S, 7 * _DAY_S, 28 * _DAY_S)
_LABELS = (10 * _MINUTE_S, _HOUR_S, 3 * _HOUR_S, 12 * _HOUR_S, _DAY_S, 4 * _DAY_S, 14 * _DAY_S, 56 * _DAY_S)
_MAX_SPAN = timedelta(days=_MAX_BUCKETS * 28)
_MAX_LABELS = 9


@dataclass(frozen=True)
class Range:
    """name: as in the URL; "" for a custom range."""

    name: str
    label: str
    axis: Axis

    @property
    def window(self) -> Window:
        return Window(_moment(self.axis.start_s), _moment(self.axis.end_s))

    @property
    def window_before(self) -> Window:
        """The window before this one, of the same length."""
        window = self.window
        return Window(window.start - (window.end - window.start), window.start)


@dataclass(frozen=True)
class Preset:
    name: str
    label: str
    bucket_s: int
    num_buckets: int
    label_every_s: int

    def until(self, now: datetime, *, zone: ZoneInfo) -> Range:
        """Whole buckets of the zone, the last of which holds `now`."""
        # In local time for buckets that follow the wall clock, in absolute time for the others.
        last = bucket_start(now, bucket_s=self.bucket_s, zone=zone if self.bucket_s > HOUR_S else UTC_ZONE)
        axis = axis_of(
            last - timedelta(seconds=(self.num_buckets - 1) * self.bucket_s),
            bucket_s=self.bucket_s,
            num_buckets=self.num_buckets,
            label_every_s=self.label_every_s,
            zone=zone,
        )
        return Range(self.name, f"last {self.label}", axis)


PRESETS = {
    known.name: known
    for known in (
        Preset("1h", "hour", 60, 60, 600),
        Preset("24h", "24 hours", 3600, 24, 3 * 3600),
        Preset("3d", "3 days", 3 * 3600, 24, 12 * 3600),
        Preset("7d", "7 days", 3 * 3600, 56, 24 * 3600),
        Preset("30d", "30 days", 24 * 3600, 30, 4 * 24 * 3600),
    )
}
DEFAULT_PRESET = "24h"


def range_of(name: str, start: str, end: str, *, zone: ZoneInfo, now: datetime) -> Range:
    """A custom range if `start` or `end` is given, widened to whole buckets; else the preset `name` or the default.

    `start` and `end` are as the API takes `from` and `to`, except that times without a zone are in `zone`. Raises
    InvalidRequest.
    """
    if not start and not end:
        return PRESETS.get(name, PRESETS[DEFAULT_PRESET]).until(now, zone=zone)
    window = parse_window(_in_zone(start, zone) or None, _in_zone(end, zone) or None, now=now)
    window = Window(max(window.start, window.end - _MAX_SPAN), window.end)
    span_s = (window.end - window.start).total_seconds()
    bucket_s = next(size for size in _BUCKETS if size * (_MAX_BUCKETS - 1) >= span_s or size == _BUCKETS[-1])
    first = bucket_start(window.start, bucket_s=bucket_s, zone=zone)
    num_buckets = num_buckets_until(first, window.end, bucket_s=bucket_s)
    label_s = next(size for size in _LABELS if num_buckets * bucket_s / size <= _MAX_LABELS or size == _LABELS[-1])
    start_text, end_text = (f"{each.astimezone(zone):%-d %b %Y, %H:%M}" for each in (window.start, window.end))
    axis = axis_of(first, bucket_s=bucket_s, num_buckets=num_buckets, label_every_s=max(label_s, bucket_s), zone=zone)
    return Range("", f"{start_text} to {end_text}", axis)


def _in_zone(text: str, zone: ZoneInfo) -> str:
    """Add `zone` to a time that names none. Other text is returned unchanged."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if found.tzinfo else found.replace(tzinfo=zone).isoformat()


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
