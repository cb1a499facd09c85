from hypothesis import given
from hypothesis import strategies as st

from gateway.processes.restarts import MAX_FAILED_STARTS, QUICK_DEATH_S, Restarts


def test_what_ran_for_a_while_is_started_again_at_once() -> None:
    restarts = Restarts()
    restarts.note(lived_s=1, was_ready=True)
    restarts.note(lived_s=QUICK_DEATH_S, was_ready=True)
    assert restarts.pause_s == 0


@given(st.lists(st.booleans(), max_size=50))
def test_quick_deaths_wait_longer_and_longer_but_never_long(were_ready: list[bool]) -> None:
    restarts, pauses = Restarts(), [0.0]
    for was_ready in were_ready:
        restarts.note(lived_s=0.1, was_ready=was_ready)
        pauses.append(restarts.pause_s)
    assert pauses == sorted(pauses)
    assert max(pauses) <= 4


@given(st.lists(st.booleans(), max_size=50))
def test_only_starts_that_fail_one_after_the_other_are_hopeless(were_ready: list[bool]) -> None:
    restarts = Restarts()
    for was_ready in were_ready:
        restarts.note(lived_s=0.1, was_ready=was_ready)
    num_last_failures = next((i for i, was_ready in enumerate(reversed(were_ready)) if was_ready), len(were_ready))
    assert restarts.is_hopeless == (num_last_failures >= MAX_FAILED_STARTS)
