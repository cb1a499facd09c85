from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.axes import axis_of
from gateway.dashboard.charts import MAX_SERIES, OTHERS, Point, nice_ceiling, stack
from gateway.dashboard.numbers import full_count, milliseconds, money, short_count
from gateway.dashboard.ranges import PRESETS, Preset, range_of
from gateway.dashboard.zones import UTC_ZONE
from gateway.http.errors import InvalidRequest

AXIS = axis_of(datetime.fromtimestamp(0, UTC), bucket_s=60, num_buckets=10, label_every_s=300, zone=UTC_ZONE)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abcdefghij"), st.integers(0, 10**12)), max_size=60))
def test_bars_stack_without_gaps_inside_the_plot_and_lose_nothing(raw: list[tuple[int, str, int]]) -> None:
    points = [Point(60 * slot, name, value) for slot, name, value in raw]
    chart = stack(points, AXIS, tick_format=short_count, value_format=full_count)
    plot_top, plot_bottom = chart.value_ticks[-1].at, chart.value_ticks[0].at
    base: dict[float, float] = {}
    for bar in chart.bars:
        assert plot_top - 0.02 <= bar.y and bar.y + bar.height <= plot_bottom + 0.02
        assert bar.y + bar.height == pytest.approx(base.get(bar.x, plot_bottom), abs=0.03)
        base[bar.x] = bar.y
    shown = sum(int(series.total.replace(",", "")) for series in chart.legend)
    assert shown == sum(point.value for point in points)


def test_the_largest_series_comes_first_and_many_become_others() -> None:
    points = [Point(0, f"m{i:02}", 100 - i) for i in range(20)]
    chart = stack(points, AXIS, tick_format=short_count, value_format=full_count)
    assert [series.name for series in chart.legend] == ["m00", "m01", "m02", "m03", "m04", "m05", OTHERS]
    assert len(chart.legend) == MAX_SERIES
    assert chart.legend[-1].total == full_count(sum(100 - i for i in range(6, 20)))


@given(st.floats(1e-6, 1e18))
def test_a_scale_covers_its_value_without_wasting_more_than_half(value: float) -> None:
    assert value * (1 - 1e-6) <= nice_ceiling(value) <= 2 * value * (1 + 1e-6)


NOW = datetime(2026, 3, 4, 12, 34, 56, tzinfo=UTC)


@given(st.lists(st.sampled_from("abcdefghijklm"), unique=True, max_size=6), st.permutations(range(1, 14)))
def test_a_colour_follows_the_name_and_no_two_share_one(names: list[str], values: list[int]) -> None:
    def colours(*, ranked: list[int]) -> dict[str, int]:
        points = [Point(0, name, value) for name, value in zip(names, ranked, strict=False)]
        chart = stack(points, AXIS, tick_format=short_count, value_format=full_count)
        return {series.name: series.colour for series in chart.legend}

    found = colours(ranked=values)
    assert found == colours(ranked=values[::-1]) and len(set(found.values())) == len(names)


@pytest.mark.parametrize("known", PRESETS.values(), ids=lambda known: known.name)
def test_a_range_ends_with_the_bucket_of_now(known: Preset) -> None:
    now = NOW
    axis = known.until(now, zone=UTC_ZONE).axis
    assert axis.buckets[-1] <= now.timestamp() < axis.buckets[-1] + axis.bucket_s
    assert axis.start_s % axis.bucket_s == 0
    assert 5 <= sum(bucket % axis.label_every_s == 0 for bucket in axis.buckets) <= 9


@given(
    st.datetimes(datetime(2025, 1, 1), datetime(2026, 3, 4)),
    st.timedeltas(timedelta(seconds=1), timedelta(days=4000)),
)
def test_an_own_range_is_shown_in_few_whole_buckets(start: datetime, span: timedelta) -> None:
    end = start + span
    chosen = range_of("", start.isoformat(), end.isoformat(), zone=UTC_ZONE, now=NOW)
    axis = chosen.axis
    assert axis.num_buckets <= 64 and axis.start_s % axis.bucket_s == 0
    assert chosen.window.end >= end.replace(tzinfo=UTC)
    assert chosen.window.start <= start.replace(tzinfo=UTC) or span > timedelta(days=62 * 28)
    assert axis.label_every_s % axis.bucket_s == 0


@pytest.mark.parametrize(("start", "end"), [("x", ""), ("", "yesterday"), ("2026-03-04", "2026-03-01")])
def test_what_is_no_range_is_refused(start: str, end: str) -> None:
    with pytest.raises(InvalidRequest):
        range_of("24h", start, end, zone=UTC_ZONE, now=NOW)


@pytest.mark.parametrize(
    ("nanousd", "text"),
    [(0, "$0"), (300, "$0.0000003"), (300_000, "$0.0003"), (50_000_000, "$0.05"), (123_456_789, "$0.12"),
     (999_999_999, "$1.00"), (12_345_678_901_234, "$12,345.68"), (1, "$0.000000001"), (500_000_000, "$0.50")],
)  # fmt: skip
def test_money_reads_well_at_every_size(nanousd: int, text: str) -> None:
    assert money(nanousd) == text


def test_counts_and_times_read_well() -> None:
    assert [short_count(n) for n in (0, 999, 1234, 5_600_000)] == ["0", "999", "1.23k", "5.6M"]
    assert [milliseconds(ms) for ms in (None, 41.6, 1234.0)] == ["–", "42 ms", "1.23 s"]
