from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.axes import Axis
from gateway.dashboard.charts import Point, stack
from gateway.dashboard.numbers import full_count
from gateway.dashboard.ranges import PRESETS, range_of
from gateway.dashboard.zones import UTC_ZONE, zone_named, zone_names

BERLIN = ZoneInfo("Europe/Berlin")


def lengths_h(axis: Axis) -> list[float]:
    return [(end - start) / 3600 for start, end in zip(axis.edges, axis.edges[1:], strict=False)]


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_a_day_when_the_clocks_change_is_one_bucket_from_midnight_to_midnight(day: str, hours: int) -> None:
    now = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=BERLIN) + timedelta(days=3)
    axis = PRESETS["30d"].until(now, zone=BERLIN).axis
    starts = [datetime.fromtimestamp(edge, BERLIN) for edge in axis.edges]
    assert {(start.hour, start.minute) for start in starts} == {(0, 0)}
    assert len({start.date() for start in starts}) == 31
    assert sorted(set(lengths_h(axis))) == sorted({24, hours})
    assert lengths_h(axis)[[f"{start:%Y-%m-%d}" for start in starts].index(day)] == hours


def test_hours_are_hours_when_the_clocks_change() -> None:
    now = datetime(2026, 10, 25, 12, tzinfo=BERLIN)
    axis = PRESETS["24h"].until(now, zone=BERLIN).axis
    assert set(lengths_h(axis)) == {1} and axis.buckets[-1] == int(now.timestamp())
    hours = [datetime.fromtimestamp(bucket, BERLIN).hour for bucket in axis.buckets]
    assert hours.count(2) == 2, "the hour that comes twice"


@given(
    st.sampled_from(zone_names()),
    st.sampled_from(sorted(PRESETS)),
    st.datetimes(datetime(2015, 1, 1), datetime(2030, 1, 1)),
)
def test_every_range_ends_with_the_bucket_of_now_in_every_zone(name: str, preset: str, moment: datetime) -> None:
    zone = zone_named(name)
    assert zone is not None
    now = moment.replace(tzinfo=UTC_ZONE)
    axis = PRESETS[preset].until(now, zone=zone).axis
    # Where a zone has half hours a day begins up to an hour late, and so ends.
    assert axis.buckets[-1] <= now.timestamp() + 3600 and now.timestamp() < axis.end_s
    assert axis.num_buckets == PRESETS[preset].num_buckets and list(axis.edges) == sorted(set(axis.edges))
    if axis.bucket_s >= 3600:
        assert all(edge % 3600 == 0 for edge in axis.edges)
    assert any(axis.is_labelled(i) for i in range(axis.num_buckets))


def test_a_time_that_is_typed_is_in_the_visitors_zone_unless_it_says_another() -> None:
    now = datetime(2026, 3, 30, tzinfo=UTC_ZONE)
    chosen = range_of("", "2026-03-28", "2026-03-30T01:00", zone=BERLIN, now=now)
    assert chosen.label == "28 Mar 2026, 00:00 to 30 Mar 2026, 01:00"
    assert chosen.window.start.isoformat() == "2026-03-27T23:00:00+00:00"
    assert chosen.axis.num_buckets == 48, "an hour is missing"
    plain = range_of("", "2026-03-28T00:00:00Z", "2026-03-28T01:00:00Z", zone=BERLIN, now=now)
    assert plain.window.start.isoformat() == "2026-03-28T00:00:00+00:00"


def test_a_charts_labels_are_in_the_zone() -> None:
    axis = PRESETS["24h"].until(datetime(2026, 7, 1, 12, tzinfo=UTC_ZONE), zone=BERLIN).axis
    chart = stack([Point(axis.buckets[-1], "m", 5)], axis, tick_format=full_count, value_format=full_count)
    assert chart.bars[0].title == "1 Jul 2026, 14:00 Europe/Berlin · m: 5"
    assert [tick.label for tick in chart.time_ticks] == [f"{hour:02}:00" for hour in (15, 18, 21, 0, 3, 6, 9, 12)]


def test_a_day_that_a_zone_skipped_is_no_bucket() -> None:
    apia = ZoneInfo("Pacific/Apia")
    axis = PRESETS["30d"].until(datetime(2012, 1, 10, tzinfo=apia), zone=apia).axis
    days = [datetime.fromtimestamp(bucket, apia).date().isoformat() for bucket in axis.buckets]
    assert "2011-12-30" not in days and len(days) == len(set(days)) == 29
