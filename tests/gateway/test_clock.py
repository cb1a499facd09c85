"""Durations in events."""

import pytest

from gateway.clock import ms_between


@pytest.mark.parametrize(
    ("began_s", "ended_s", "expected_ms"),
    [(0.1, 0.3, 200.0), (0.0, 0.0012345678, 1.235), (5.0, 5.0, 0.0), (86_400.25, 86_400.254_35, 4.35)],
)
def test_a_duration_is_in_whole_microseconds(began_s: float, ended_s: float, expected_ms: float) -> None:
    assert repr(ms_between(began_s, ended_s)) == repr(expected_ms)
