import signal

from tiergate.up.restarts import MAX_FAILED_STARTS, Restarts

KILLED = -signal.SIGKILL


def test_starts_that_fail_again_and_again_are_given_up() -> None:
    restarts = Restarts(has_probe=True)
    for _ in range(MAX_FAILED_STARTS):
        assert not restarts.is_hopeless
        restarts.note(1, lived_s=30, became_ready=False)
    assert restarts.is_hopeless


def test_what_ran_well_comes_back_however_often_it_is_killed() -> None:
    restarts = Restarts(has_probe=True)
    restarts.note(KILLED, lived_s=60, became_ready=True)
    for _ in range(50):
        restarts.note(KILLED, lived_s=0.5, became_ready=False)
    assert not restarts.is_hopeless


def test_a_process_killed_while_it_starts_for_the_first_time_is_given_up() -> None:
    restarts = Restarts(has_probe=True)
    for _ in range(MAX_FAILED_STARTS):
        restarts.note(KILLED, lived_s=20, became_ready=False)
    assert restarts.is_hopeless


def test_without_a_probe_only_its_own_failures_count() -> None:
    killed, failing = Restarts(has_probe=False), Restarts(has_probe=False)
    for _ in range(MAX_FAILED_STARTS):
        killed.note(KILLED, lived_s=1, became_ready=True)
        failing.note(1, lived_s=1, became_ready=True)
    assert not killed.is_hopeless and failing.is_hopeless


def test_a_good_run_forgives_what_was_before() -> None:
    restarts = Restarts(has_probe=True)
    for _ in range(3):
        for _ in range(MAX_FAILED_STARTS - 1):
            restarts.note(1, lived_s=1, became_ready=False)
        restarts.note(1, lived_s=1, became_ready=True)
    assert not restarts.is_hopeless


def test_pauses_grow_to_a_bound_and_begin_anew_after_a_long_life() -> None:
    restarts = Restarts(has_probe=True)
    pauses = []
    for _ in range(8):
        restarts.note(KILLED, lived_s=1, became_ready=True)
        pauses.append(restarts.pause_s)
    assert pauses == [0.25, 0.5, 1, 2, 4, 4, 4, 4]
    restarts.note(KILLED, lived_s=11, became_ready=True)
    assert restarts.pause_s == 0.25


def test_exit_code_2_is_bad_input_only_before_it_ever_ran() -> None:
    restarts = Restarts(has_probe=True)
    assert restarts.is_bad_input(2, code=2) and not restarts.is_bad_input(1, code=2)
    restarts.note(KILLED, lived_s=60, became_ready=True)
    assert not restarts.is_bad_input(2, code=2)
