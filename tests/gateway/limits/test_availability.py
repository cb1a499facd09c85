"""When Redis counts as away, and when as back: properties over any sequence of events."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.availability import ANSWERS_TO_RETURN, CALM_S, LATE_IN_A_ROW, PAUSE_S, Availability
from tests.support.clocks import Clock

NUM_CONNECTIONS = 2
events = st.lists(
    st.sampled_from(["answer", "late", "silence", "lost", "one left", "all there", "return", "wait"]),
    max_size=60,
)


def play(availability: Availability, clock: Clock, event: str) -> None:
    if event == "answer":
        availability.note_answer()
    elif event == "late":
        availability.note_late()
    elif event == "silence":
        availability.note_silence()
    elif event == "wait":
        clock.now += CALM_S
    elif event == "return":
        if availability.can_return:
            availability.note_returned()
    else:
        availability.note_connections({"lost": 0, "one left": 1, "all there": NUM_CONNECTIONS}[event])


def there(clock: Clock) -> Availability:
    availability = Availability(clock)
    availability.note_connections(NUM_CONNECTIONS)
    availability.note_returned()
    assert not availability.is_away
    return availability


@given(events)
def test_away_takes_several_late_answers_in_a_row_silence_or_no_connection(sequence: list[str]) -> None:
    clock = Clock()
    availability = there(clock)
    num_late, num_connections = 0, NUM_CONNECTIONS
    may_be_pause, silence_counts_from = False, 0.0
    for event in sequence:
        was_away = availability.is_away
        play(availability, clock, event)
        num_late = {"late": num_late + 1, "answer": 0, "return": num_late if not was_away else 0}.get(event, num_late)
        num_connections = {"lost": 0, "one left": 1, "all there": NUM_CONNECTIONS}.get(event, num_connections)
        if not was_away:
            may_be_pause = event == "silence" and clock.now >= silence_counts_from
            assert availability.is_away == (num_late >= LATE_IN_A_ROW or num_connections == 0 or may_be_pause)
        elif may_be_pause and event == "answer":
            may_be_pause, silence_counts_from = False, clock.now + PAUSE_S
        elif event in ("late", "lost"):
            may_be_pause = False


@given(events)
def test_back_takes_answers_in_a_row_and_a_connection(sequence: list[str]) -> None:
    clock = Clock()
    availability = there(clock)
    availability.note_connections(0)
    num_answers, num_connections = 0, 0
    for event in sequence:
        if event == "return" and availability.is_away and availability.can_return:
            assert num_answers >= ANSWERS_TO_RETURN
            assert num_connections > 0
        was_away = availability.is_away
        play(availability, clock, event)
        num_answers = {"answer": num_answers + 1, "late": 0, "silence": 0, "lost": 0}.get(event, num_answers)
        num_connections = {"lost": 0, "one left": 1, "all there": NUM_CONNECTIONS}.get(event, num_connections)
        if availability.is_away and not was_away:
            num_answers = 0


@given(events)
def test_whatever_happened_answers_bring_it_back_and_calm(sequence: list[str]) -> None:
    clock = Clock()
    availability = there(clock)
    for event in sequence:
        play(availability, clock, event)
    for event in ["all there", *["answer"] * 100, "return"]:
        play(availability, clock, event)
    assert availability.is_calm


def test_whoever_falls_back_at_once_returns_later() -> None:
    clock = Clock()
    availability = there(clock)
    needed = []
    for _ in range(8):
        availability.note_connections(0)
        availability.note_connections(NUM_CONNECTIONS)
        count = 0
        while not availability.can_return:
            availability.note_answer()
            count += 1
        needed.append(count)
        availability.note_returned()
    assert needed == [4, 8, 16, 32, 32, 32, 32, 32]
    clock.now += CALM_S
    availability.note_connections(0)
    availability.note_connections(NUM_CONNECTIONS)
    for _ in range(ANSWERS_TO_RETURN):
        availability.note_answer()
    assert availability.can_return


def test_after_a_pause_silence_does_not_count_and_the_return_is_no_later() -> None:
    clock = Clock()
    availability = there(clock)
    for _ in range(3):
        availability.note_silence()
        assert availability.is_away
        for _ in range(ANSWERS_TO_RETURN):
            assert not availability.can_return
            availability.note_answer()
        availability.note_returned()
        availability.note_silence()
        assert not availability.is_away
        clock.now += PAUSE_S


def test_a_silence_that_outlasts_the_deadline_is_an_outage() -> None:
    clock = Clock()
    availability = there(clock)
    for needed in (4, 8):
        availability.note_silence()
        availability.note_late()
        for _ in range(needed):
            assert not availability.can_return
            availability.note_answer()
        availability.note_returned()
    availability.note_silence()
    assert availability.is_away


def test_trouble_is_told_when_it_begins() -> None:
    told: list[None] = []
    availability = Availability(Clock(), on_trouble=lambda: told.append(None))
    availability.note_connections(NUM_CONNECTIONS)
    availability.note_returned()
    availability.note_answer()
    assert not told
    availability.note_late()
    assert told
    assert not availability.is_away
