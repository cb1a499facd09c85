"""The time ranges that the dashboard offers."""

from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.dashboard.charts import Axis
from gateway.metering.windows import Window


@dataclass(frozen=True)
class Range:
    name: str
    label: str
    bucket_s: int
    num_buckets: int
    label_every_s: int

    def axis(self, now: datetime) -> Axis:
        """Whole buckets on the UTC clock, of which the last holds `now`."""
        last = int(now.timestamp()) // self.bucket_s * self.bucket_s
        return Axis(last - (self.num_buckets - 1) * self.bucket_s, self.bucket_s, self.num_buckets, self.label_every_s)


RANGES = {
    known.name: known
    for known in (
        Range("1h", "hour", 60, 60, 600),
        Range("24h", "24 hours", 3600, 24, 3 * 3600),
        Range("7d", "7 days", 3 * 3600, 56, 24 * 3600),
        Range("30d", "30 days", 24 * 3600, 30, 4 * 24 * 3600),
    )
}
DEFAULT_RANGE = "24h"


def window_of(axis: Axis) -> Window:
    end_s = axis.start_s + axis.num_buckets * axis.bucket_s
    return Window(datetime.fromtimestamp(axis.start_s, UTC), datetime.fromtimestamp(end_s, UTC))
