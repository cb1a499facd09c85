"""What this process has under way at a member stays with it from picture to picture."""

import msgspec

from gateway.upstream.traffic import Traffic
from tests.support.fleets import load, member


def test_counts_go_on_in_the_next_picture_and_are_dated_by_the_report() -> None:
    traffic, report = Traffic(), load(waiting=3)
    [(_, first)] = traffic.attach([("small", member("w", report))], 10.0)
    trip = first.in_flight.send(10.1)
    [(_, same)] = traffic.attach([("small", member("w", report))], 11.0)
    assert same.in_flight is first.in_flight
    assert (same.age_s, same.own_unanswered, same.in_flight.num_unanswered) == (1.0, 0, 1)
    trip.note_first_token(11.1)
    [(_, anew)] = traffic.attach([("small", member("w", msgspec.structs.replace(report, num_waiting=1)))], 12.0)
    assert (anew.age_s, anew.own_unanswered, anew.own_streaming) == (0.0, 0, 1)
    assert anew.recent_ttft_ms is not None


def test_a_member_that_is_gone_is_forgotten() -> None:
    traffic = Traffic()
    [(_, first)] = traffic.attach([("small", member("w"))], 0.0)
    first.in_flight.send(0.0)
    traffic.attach([], 1.0)
    [(_, anew)] = traffic.attach([("small", member("w"))], 2.0)
    assert anew.in_flight.num_requests == 0


def test_a_load_that_came_beside_an_answer_is_held_against_what_was_under_way_then() -> None:
    traffic, report = Traffic(), load(waiting=3)
    [(_, first)] = traffic.attach([("small", member("w", report))], 10.0)
    trip = first.in_flight.send(10.1)
    traffic.note_told("w", 10.2)
    trip.end()
    told = msgspec.structs.replace(report, num_waiting=1)
    [(_, anew)] = traffic.attach([("small", member("w", told))], 10.5)
    assert (anew.own_unanswered, anew.in_flight.num_unanswered, round(anew.age_s, 3)) == (1, 0, 0.3)
    [(_, later)] = traffic.attach([("small", member("w", msgspec.structs.replace(told)))], 11.0)
    assert (later.own_unanswered, later.age_s) == (0, 0.0)
