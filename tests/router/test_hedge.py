import pytest

from router.balance import order
from router.fleet import Member
from router.hedge import ENOUGH, late_after_ms, spare
from router.in_flight import MEASURED_S
from router.saturation import DEFAULT_THRESHOLDS
from tests.support.fleets import load, member, pool


def measured(worker: Member, times_ms: list[float], *, at_s: float = 100.0) -> Member:
    for each in times_ms:
        worker.in_flight.note_ttft(each, at_s)
    return worker


def test_late_is_later_than_nineteen_of_twenty() -> None:
    first = measured(member("a"), [float(each) for each in range(100)])
    assert late_after_ms(first, [first], 100.0) == 95.0


def test_a_replica_that_was_measured_too_little_is_held_to_the_times_of_all() -> None:
    first, other = measured(member("a"), [10.0]), measured(member("b"), [100.0] * ENOUGH)
    assert late_after_ms(first, [first, other], 100.0) == 100.0
    assert late_after_ms(first, [first], 100.0) is None


def test_old_times_tell_nothing() -> None:
    first = measured(member("a"), [10.0] * ENOUGH)
    assert late_after_ms(first, [first], 100.0 + MEASURED_S) == 10.0
    assert late_after_ms(first, [first], 100.1 + MEASURED_S) is None


def test_who_lost_is_remembered_as_slow_as_it_is_known_to_be() -> None:
    worker = member("a")
    worker.in_flight.send(1.0).give_up(3.5)
    assert worker.in_flight.recent_ttft_ms(3.5) == 2500
    assert worker.in_flight.num_requests == 0


@pytest.mark.parametrize("waiting", [0, 11])
def test_the_second_is_the_best_other_one_that_has_room(waiting: int) -> None:
    first, other = member("a"), member("b", load(waiting=waiting))
    candidates = order(pool("large", first, other), request_id="r")
    found = spare(candidates, first, DEFAULT_THRESHOLDS)
    assert (found and found.worker_id) == (None if waiting else "b")
    assert spare(candidates[:1], candidates[0].member, DEFAULT_THRESHOLDS) is None
