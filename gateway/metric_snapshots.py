"""Metrics as plain values: snapshots that are sent between processes, added up and rendered."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

Labels = tuple[tuple[str, str], ...]
"""Label names and values, sorted by name."""

_SUMMED_FOR_EVER = ("counter", "histogram", "summary")


class Family(msgspec.Struct, frozen=True, array_like=True):
    name: str
    documentation: str
    kind: str
    samples: dict[tuple[str, Labels], float]
    """(sample name, labels) -> value."""


Snapshot = tuple[Family, ...]


def snapshot(registry: CollectorRegistry) -> Snapshot:
    return tuple(
        Family(
            name=metric.name,
            documentation=metric.documentation,
            kind=metric.type,
            samples={(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in metric.samples},
        )
        for metric in registry.collect()
    )


def merge(snapshots: Iterable[Snapshot], *, largest: Collection[str] = ()) -> Snapshot:
    """Add up the snapshots sample by sample; for the families in `largest` take the largest value instead."""
    merged: dict[str, Family] = {}
    for each in snapshots:
        for family in each:
            so_far = merged.get(family.name)
            merged[family.name] = family if so_far is None else _add(so_far, family, largest=family.name in largest)
    return tuple(merged.values())


def only_totals(shown: Snapshot) -> Snapshot:
    """The families that must outlive the process that counted them: a falling total looks like a counter reset to
    Prometheus."""
    return tuple(family for family in shown if family.kind in _SUMMED_FOR_EVER)


def largest_samples(shown: Snapshot, *, most: Mapping[str, int]) -> Snapshot:
    """The snapshot with only the largest samples of each family in `most` (family name -> number of samples)."""
    return tuple(
        _largest(family, most[family.name])
        if len(family.samples) > most.get(family.name, len(family.samples))
        else family
        for family in shown
    )


def render(shown: Snapshot) -> bytes:
    """The snapshot in Prometheus's text format."""
    return generate_latest(_Collected(shown))


def _largest(family: Family, most: int) -> Family:
    kept = sorted(family.samples, key=lambda key: -family.samples[key])[:most]
    return msgspec.structs.replace(family, samples={key: family.samples[key] for key in kept})


def _add(a: Family, b: Family, *, largest: bool) -> Family:
    samples = dict(a.samples)
    for key, value in b.samples.items():
        if key not in samples:
            samples[key] = value
        elif key[0].endswith("_created"):
            samples[key] = min(samples[key], value)
        else:
            samples[key] = max(samples[key], value) if largest else samples[key] + value
    return msgspec.structs.replace(a, samples=samples)


class _Collected(CollectorRegistry):
    def __init__(self, shown: Snapshot) -> None:
        super().__init__()
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        for family in self._shown:
            metric = Metric(family.name, family.documentation, family.kind)
            for (name, labels), value in family.samples.items():
                metric.add_sample(name, dict(labels), value)
            yield metric
