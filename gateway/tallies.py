"""Counters and histograms for a single event loop: an update is an addition in a dictionary, ten times cheaper than a
lock and label objects. Labels are tuples of their values; the caller must keep their number small.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class CountedElsewhere(Collector):
    """A counter that is kept elsewhere and read at each scrape."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], counts: Callable[[], Mapping[Labels, float]]
    ) -> None:
        self._family = name, documentation, labels
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        name, documentation, labels = self._family
        family = CounterMetricFamily(name, documentation, labels=labels)
        for values, count in self._counts().items():
            family.add_metric(values, count)
        yield family


class Tally(CountedElsewhere):
    """A counter."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._tallied: dict[Labels, float] = {}
        super().__init__(name, documentation, labels, lambda: self._tallied)

    def add(self, labels: Labels, count: float = 1) -> None:
        self._tallied[labels] = self._tallied.get(labels, 0) + count


class Distribution(Collector):
    """A histogram. `bounds`: ascending upper bounds of the buckets, inclusive."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], *, bounds: Sequence[float]) -> None:
        self._family = name, documentation, labels
        self._bounds = bounds
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, labels: Labels, value: float) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            self._sums[labels] = 0.0
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterator[Metric]:
        name, documentation, labels = self._family
        family = HistogramMetricFamily(name, documentation, labels=labels)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, counts in self._counts.items():
            so_far, buckets = 0, []
            for bound, count in zip(bounds, counts, strict=True):
                so_far += count
                buckets.append((bound, float(so_far)))
            family.add_metric(values, buckets, self._sums[values])
        yield family


class Lately(Collector):
    """Sums over the last MINUTES minutes, as a gauge with one label; shows only the `most` largest.

    Memory is bounded by the label values seen in that time and the output by `most`, so values need not be few.
    """

    MINUTES = 5

    def __init__(self, name: str, documentation: str, label: str, *, most: int, clock: Callable[[], float]) -> None:
        self._family = name, documentation, label
        self._most = most
        self._clock = clock
        self._by_minute: dict[int, dict[str, int]] = {}

    def add(self, who: str, count: int) -> None:
        minute = int(self._clock()) // 60
        counts = self._by_minute.get(minute)
        if counts is None:
            self._forget(minute)
            counts = self._by_minute[minute] = {}
        counts[who] = counts.get(who, 0) + count

    def collect(self) -> Iterator[Metric]:
        name, documentation, label = self._family
        self._forget(int(self._clock()) // 60)
        sums: dict[str, int] = {}
        for counts in self._by_minute.values():
            for who, count in counts.items():
                sums[who] = sums.get(who, 0) + count
        family = GaugeMetricFamily(name, documentation, labels=[label])
        for who in sorted(sums, key=lambda each: -sums[each])[: self._most]:
            family.add_metric([who], sums[who])
        yield family

    def _forget(self, minute: int) -> None:
        for old in [each for each in self._by_minute if each <= minute - self.MINUTES]:
            del self._by_minute[old]
