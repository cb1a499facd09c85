"""The time buckets of a chart. Buckets of up to an hour follow absolute time, longer ones the local wall clock."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from gateway.dashboard.zones import UTC_ZONE

HOUR_S = 3600
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Axis:
    edges: tuple[int, ...]
    """Unix seconds at which the buckets begin, and at which the last one ends."""
    bucket_s: int
    """Beyond an hour, measured by the wall clock: a day may have 23 or 25 hours."""
    label_every_s: int
    """Time labels stand at multiples of this on the wall clock."""
    zone: ZoneInfo

    @property
    def buckets(self) -> tuple[int, ...]:
        return self.edges[:-1]

    @property
    def num_buckets(self) -> int:
        return len(self.edges) - 1

    @property
    def start_s(self) -> int:
        return self.edges[0]

    @property
    def end_s(self) -> int:
        return self.edges[-1]

    @property
    def is_even(self) -> bool:
        """Whether all buckets begin at multiples of `bucket_s` since the epoch."""
        return self.bucket_s <= HOUR_S or self.zone is UTC_ZONE

    def is_labelled(self, i: int) -> bool:
        periods = [self._wall_s(edge) // self.label_every_s for edge in self.edges[max(0, i - 1) : i + 1]]
        if i == 0:
            return self._wall_s(self.start_s) % self.label_every_s == 0
        return periods[0] != periods[1]

    def _wall_s(self, edge: int) -> int:
        return _wall_s(datetime.fromtimestamp(edge, self.zone))


def axis_of(start: datetime, *, bucket_s: int, num_buckets: int, label_every_s: int, zone: ZoneInfo) -> Axis:
    """start: as returned by `bucket_start`."""
    if bucket_s <= HOUR_S:
        first = int(start.timestamp())
        edges = tuple(first + i * bucket_s for i in range(num_buckets + 1))
    else:
        # Where a zone has skipped a day, two edges coincide.
        edges = tuple(sorted({_edge(start + timedelta(seconds=i * bucket_s)) for i in range(num_buckets + 1)}))
    return Axis(edges, bucket_s, label_every_s, zone)


def bucket_start(moment: datetime, *, bucket_s: int, zone: ZoneInfo) -> datetime:
    """The start of the bucket that holds `moment`, in `zone`."""
    if bucket_s <= HOUR_S:
        return datetime.fromtimestamp(int(moment.timestamp()) // bucket_s * bucket_s, zone)
    wall_s = _wall_s(moment.astimezone(zone)) // bucket_s * bucket_s
    return (_EPOCH + timedelta(seconds=wall_s)).replace(tzinfo=zone)


def num_buckets_until(start: datetime, end: datetime, *, bucket_s: int) -> int:
    """At least 1. start: as returned by `bucket_start`."""
    if bucket_s <= HOUR_S:
        span_s = end.timestamp() - start.timestamp()
    else:
        span_s = (end.astimezone(start.tzinfo).replace(tzinfo=None) - start.replace(tzinfo=None)).total_seconds()
    return max(1, int(-(-span_s // bucket_s)))


def _edge(local: datetime) -> int:
    """Rollups have whole hours only. In a zone at a half-hour offset a bucket begins at the next full UTC hour."""
    return -(-int(local.astimezone(UTC).timestamp()) // HOUR_S) * HOUR_S


def _wall_s(local: datetime) -> int:
    return int((local.replace(tzinfo=None) - _EPOCH).total_seconds())
