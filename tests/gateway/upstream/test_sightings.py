"""Registrations that nobody takes back: workers that were killed, and clocks that are wrong."""

from gateway.upstream.sightings import REMEMBERED_S, UNCHANGED_S, Sightings
from protocol.load import seal
from tests.gateway.upstream.test_registry import registration
from tests.support.gateways import WORKER_KEY


def sealed(worker_id: str, *, age_s: float, key: str = WORKER_KEY) -> dict[bytes, bytes]:
    return {worker_id.encode(): seal(registration(worker_id, age_s=age_s), worker_key=key)}


def test_registrations_of_the_long_dead_may_be_removed_once_they_stood_still() -> None:
    sightings = Sightings((WORKER_KEY,))
    old = REMEMBERED_S + 10
    there = sealed("dead", age_s=old) | sealed("lately", age_s=60) | sealed("stranger", age_s=old, key="another key")
    for at_s in (0.0, UNCHANGED_S):
        sightings.note(there, at_s, is_settled=True)
        assert sightings.take_long_dead(at_s) == []
    assert sightings.take_long_dead(UNCHANGED_S + 1) == ["dead"]
    assert sightings.take_long_dead(UNCHANGED_S + 1) == []


def test_a_worker_that_lives_with_a_clock_an_hour_off_is_not_taken_and_not_removed() -> None:
    sightings = Sightings((WORKER_KEY,))
    for at_s in range(0, 200, 10):
        sightings.note(sealed("slow-clock", age_s=REMEMBERED_S + 300 - at_s), float(at_s), is_settled=True)
        assert sightings.registrations() == []
        assert sightings.take_long_dead(float(at_s)) == []


def test_what_is_gone_meanwhile_is_forgotten() -> None:
    sightings = Sightings((WORKER_KEY,))
    sightings.note(sealed("dead", age_s=REMEMBERED_S + 10), 0.0, is_settled=True)
    sightings.note({}, 1.0, is_settled=True)
    assert sightings.take_long_dead(1000.0) == []
