from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.rollups.pieces import Grain, split
from gateway.metering.windows import Window

_BEGIN = datetime(2026, 2, 27, tzinfo=UTC)
moments = st.integers(0, 5 * 86_400_000_000).map(lambda us: _BEGIN + timedelta(microseconds=us))
grains = st.sampled_from(["day", "hour", "event"])
STEPS = {"usage_events": timedelta(microseconds=1), "usage_hours": timedelta(hours=1), "usage_days": timedelta(days=1)}


@given(moments, moments, st.none() | moments, st.none() | moments, grains)
def test_pieces_are_the_whole_window_in_order_and_rollups_hold_whole_hours_and_days(
    first: datetime, second: datetime, rolled_until: datetime | None, swept_at: datetime | None, grain: Grain
) -> None:
    window = Window(min(first, second), max(first, second) + timedelta(microseconds=1))
    pieces = split(window, rolled_until=rolled_until, swept_at=swept_at, grain=grain)
    assert pieces[0].window.start == window.start
    assert pieces[-1].window.end == window.end
    for piece, following in pairwise(pieces):
        assert piece.window.end == following.window.start
    for piece in pieces:
        assert piece.window.start < piece.window.end
        for moment in (piece.window.start, piece.window.end):
            assert (moment - _BEGIN) % STEPS[piece.table] == timedelta(0)
        if piece.table != "usage_events":
            assert rolled_until is not None
            assert piece.window.end <= rolled_until
            assert grain != "event"
        if piece.table == "usage_days":
            assert grain == "day"
            assert swept_at is not None and piece.window.end <= swept_at
    assert len(pieces) <= 5


def test_a_long_window_is_mostly_days() -> None:
    window = Window(_BEGIN - timedelta(minutes=30), _BEGIN + timedelta(days=3, hours=2, minutes=5))
    pieces = split(window, rolled_until=window.end - timedelta(hours=1), swept_at=window.end, grain="day")
    assert [piece.table for piece in pieces] == ["usage_events", "usage_days", "usage_hours", "usage_events"]


def test_a_day_is_read_by_its_hours_until_it_was_over_at_a_sweep() -> None:
    window = Window(_BEGIN, _BEGIN + timedelta(days=2))
    pieces = split(window, rolled_until=window.end, swept_at=window.end - timedelta(seconds=1), grain="day")
    assert [piece.table for piece in pieces] == ["usage_days", "usage_hours"]
