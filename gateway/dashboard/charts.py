"""Stacked bars over time, laid out as plain numbers; `chart.html` draws them as SVG."""

import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from gateway.dashboard.axes import Axis
from gateway.dashboard.numbers import Format

MAX_SERIES = 7
OTHERS = "others"
NUM_COLOURS = MAX_SERIES - 1
"""Colours 0 to NUM_COLOURS - 1 are for names. Colour NUM_COLOURS is for OTHERS, or a name that finds no free one."""
HEIGHT, TOP, BOTTOM = 260, 24, 28
"""In pixels. Positions along the time axis are percent of the width, so that labels are not smaller on a phone."""
_NUM_TICKS = 4
_DAY_S = 24 * 3600


class Point(NamedTuple):
    bucket: int
    """Unix seconds of the bucket's start."""
    name: str
    value: float


class Bar(NamedTuple):
    """x and width in percent, y and height in pixels."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    title: str


class Tick(NamedTuple):
    at: float
    label: str


@dataclass(frozen=True)
class Series:
    colour: int
    name: str
    total: str


@dataclass(frozen=True)
class Chart:
    bars: list[Bar]
    value_ticks: list[Tick]
    time_ticks: list[Tick]
    legend: list[Series]
    table: list[tuple[str, list[str]]]
    """The same figures for people who cannot see the bars: a bucket's label, and its value for each legend entry."""
    height: int = HEIGHT
    bottom: int = HEIGHT - BOTTOM


def stack(
    points: Sequence[Point], axis: Axis, *, tick_format: Format, value_format: Format, least_top: float = 0
) -> Chart:
    """Series are stacked in the order of their totals, the largest at the bottom. If there are more than MAX_SERIES,
    the smallest are merged into OTHERS. A colour follows from the name, so that it means the same whatever is measured.

    least_top: the scale's top is at least this; 4 keeps the ticks of counts whole.
    """
    names = _ranked(points)
    values = _by_bucket(points, names)
    top = max(nice_ceiling(max((sum(column.values()) for column in values.values()), default=0)), least_top)
    scale = (HEIGHT - TOP - BOTTOM) / top
    slot = 100 / axis.num_buckets
    colours = _colours(names)
    bars = []
    for i, bucket in enumerate(axis.buckets):
        base = float(HEIGHT - BOTTOM)
        for name in names:
            value = values[bucket].get(name, 0)
            if value > 0:
                height = value * scale
                base -= height
                title = f"{full_label(bucket, axis.zone)} · {name}: {value_format(value)}"
                x, width = round((i + 0.1) * slot, 3), round(0.8 * slot, 3)
                bars.append(Bar(x, round(base, 2), width, round(height, 2), colours[name], title))
    return Chart(
        bars=bars,
        value_ticks=_value_ticks(top, scale, tick_format),
        time_ticks=_time_ticks(axis, slot),
        legend=[Series(colours[name], name, value_format(_total(values, name))) for name in names],
        table=[
            (full_label(bucket, axis.zone), [value_format(values[bucket].get(name, 0)) for name in names])
            for bucket in axis.buckets
            if any(values[bucket].values())
        ],
    )


def nice_ceiling(value: float) -> float:
    """The smallest top of a scale that is not below `value` and has round quarters; whole ones from 4 on."""
    if value <= 0:
        return 4
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.2, 2, 4, 8, 12) if step * power >= value * (1 - 1e-9))


def full_label(bucket: int, zone: ZoneInfo) -> str:
    return f"{datetime.fromtimestamp(bucket, zone):%-d %b %Y, %H:%M} {zone.key}"


def _ranked(points: Sequence[Point]) -> list[str]:
    totals: dict[str, float] = defaultdict(float)
    for point in points:
        totals[point.name] += point.value
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    return ranked if len(ranked) <= MAX_SERIES else [*ranked[: MAX_SERIES - 1], OTHERS]


def _colours(names: Sequence[str]) -> Mapping[str, int]:
    """Name -> colour: the one of its hash, or the next that no other name has taken."""
    taken: dict[str, int] = {OTHERS: NUM_COLOURS} if OTHERS in names else {}
    for name in sorted(names):
        own = zlib.crc32(name.encode()) % NUM_COLOURS
        free = (each % NUM_COLOURS for each in range(own, own + NUM_COLOURS))
        taken.setdefault(name, next((each for each in free if each not in taken.values()), NUM_COLOURS))
    return taken


def _by_bucket(points: Sequence[Point], names: Sequence[str]) -> Mapping[int, Mapping[str, float]]:
    values: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for point in points:
        values[point.bucket][point.name if point.name in names else OTHERS] += point.value
    return values


def _total(values: Mapping[int, Mapping[str, float]], name: str) -> float:
    return sum(column.get(name, 0) for column in values.values())


def _value_ticks(top: float, scale: float, tick_format: Format) -> list[Tick]:
    steps = [top * i / _NUM_TICKS for i in range(_NUM_TICKS + 1)]
    return [Tick(round(HEIGHT - BOTTOM - step * scale, 2), tick_format(step)) for step in steps]


def _time_ticks(axis: Axis, slot: float) -> list[Tick]:
    pattern = "%H:%M" if axis.label_every_s < _DAY_S else "%-d %b"
    return [
        Tick(round((i + 0.5) * slot, 2), f"{datetime.fromtimestamp(bucket, axis.zone):{pattern}}")
        for i, bucket in enumerate(axis.buckets)
        if axis.is_labelled(i)
    ]
