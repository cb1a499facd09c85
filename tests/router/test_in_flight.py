from hypothesis import given
from hypothesis import strategies as st

from router.in_flight import RECENT_S, InFlight


def test_a_request_is_unanswered_until_its_first_token_and_gone_at_its_end() -> None:
    here = InFlight()
    trip = here.send(1.0)
    assert (here.num_unanswered, here.num_streaming) == (1, 0)
    trip.note_first_token(1.25)
    assert (here.num_unanswered, here.num_streaming) == (0, 1)
    trip.end()
    assert (here.num_requests, here.recent_ttft_ms(1.25)) == (0, 250)


def test_one_that_ends_without_a_token_measures_nothing() -> None:
    here = InFlight()
    here.send(1.0).end()
    assert here.recent_ttft_ms(1.0) is None


def test_a_slow_first_token_is_forgotten_so_that_the_member_is_tried_again() -> None:
    here = InFlight()
    here.note_ttft(9000, 10.0)
    here.note_ttft(100, 10.0)
    assert here.recent_ttft_ms(10.0) == 7220
    assert here.recent_ttft_ms(10.1 + RECENT_S) is None
    here.note_ttft(100, 30.0)
    assert here.recent_ttft_ms(30.0) == 100


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["token", "end"])), max_size=40))
def test_however_often_a_trip_is_told_its_counts_come_back(steps: list[tuple[int, str]]) -> None:
    here = InFlight()
    trips = [here.send(0.0) for _ in range(5)]
    for index, step in steps:
        trips[index].end() if step == "end" else trips[index].note_first_token(1.0)
        assert here.num_unanswered >= 0 and here.num_streaming >= 0
    for trip in trips:
        trip.end()
    assert here.num_requests == 0
