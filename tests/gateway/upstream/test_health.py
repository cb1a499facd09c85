"""Breakers open, try and close as they should; no clock but the test's."""

import pytest

from gateway.upstream.health import (
    LEAST_WEIGHT,
    MAX_FAILED_PROBES,
    MAX_OPEN_S,
    MAX_STRIKES,
    OPEN_S,
    SLOW_START_S,
    WELL,
    Health,
)
from gateway.upstream.retry_budget import REFILL_PER_S, RESERVE, SHARE, RetryBudget
from router.fleet import Member


def verdicts(health: Health, now: float) -> tuple[bool, bool]:
    """Whether the member is healthy, where we probe it and where requests must."""
    probed = health.verdict("w", now, is_probed=True)
    tried = health.verdict("w", now, is_probed=False)
    assert tried.is_healthy == tried.is_on_trial or tried.weight == 1 or not tried.is_on_trial
    return probed.is_healthy, tried.is_healthy


def test_a_member_that_cannot_be_reached_is_left_at_once_and_tried_later() -> None:
    health = Health()
    assert health.note_failure("w", 0.0, is_fatal=True)
    assert verdicts(health, OPEN_S - 0.01) == (False, False)
    assert verdicts(health, OPEN_S) == (False, True), "requests are the trial only where we have no other"
    assert health.verdict("w", OPEN_S, is_probed=False).is_on_trial


def test_each_failed_trial_doubles_the_wait_up_to_a_bound() -> None:
    health, now = Health(), 0.0
    waits = []
    for _ in range(8):
        health.note_failure("w", now, is_fatal=True)
        due = health.probe_at("w")
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits[:4] == [OPEN_S, 2 * OPEN_S, 4 * OPEN_S, 8 * OPEN_S]
    assert waits[-1] == MAX_OPEN_S


def test_what_was_under_way_when_it_opened_changes_nothing() -> None:
    health = Health()
    health.note_failure("w", 0.0, is_fatal=True)
    for _ in range(50):
        assert not health.note_failure("w", 0.1, is_fatal=True)
    assert health.probe_at("w") == OPEN_S


def test_faults_open_only_in_a_row() -> None:
    health = Health()
    for _ in range(3):
        for _ in range(MAX_STRIKES - 1):
            assert not health.note_failure("w", 0.0, is_fatal=False)
        health.note_success("w", 0.0)
    assert health.verdict("w", 0.0, is_probed=True) == WELL
    assert [health.note_failure("w", 0.0, is_fatal=False) for _ in range(MAX_STRIKES)][-1]


def test_a_trial_that_succeeds_closes_and_the_share_grows() -> None:
    for succeed in (
        lambda health, now: health.note_probe("w", now, is_ready=True),
        lambda health, now: health.note_success("w", now),
    ):
        health = Health()
        health.note_failure("w", 0.0, is_fatal=True)
        succeed(health, OPEN_S / 2)
        assert verdicts(health, OPEN_S / 2) == (False, False), "not before its trial"
        succeed(health, OPEN_S)
        weights = [health.verdict("w", OPEN_S + t, is_probed=True).weight for t in (0, SLOW_START_S / 2, SLOW_START_S)]
        assert weights == [LEAST_WEIGHT, 0.5, 1.0]
        assert health.verdict("w", 100.0, is_probed=True) == WELL


def test_probes_that_fail_open_it_too() -> None:
    health = Health()
    results = [health.note_probe("w", float(i), is_ready=False) for i in range(MAX_FAILED_PROBES)]
    assert results == [False] * (MAX_FAILED_PROBES - 1) + [True]
    assert verdicts(health, float(MAX_FAILED_PROBES)) == (False, False)


def member(name: str, ttft_ms: float | None) -> Member:
    return Member(worker_id=name, url=f"http://{name}", model_name="m", recent_ttft_ms=ttft_ms)


@pytest.mark.parametrize(
    ("ttfts", "opened"),
    [
        ([100.0, 120.0, 9000.0], "2"),
        ([100.0, 120.0, 1900.0], ""),
        ([8000.0, 9000.0, 9500.0], ""),
        ([9000.0, None, None], ""),
        ([100.0, 9000.0], "1"),
    ],
)
def test_first_tokens_far_later_than_the_others_are_a_fault(ttfts: list[float | None], opened: str) -> None:
    health = Health()
    members = [member(str(i), ttft_ms) for i, ttft_ms in enumerate(ttfts)]
    assert health.judge_pool(members, 0.0) == bool(opened)
    assert "".join(each.worker_id for each in members if health.probe_at(each.worker_id) is not None) == opened


def test_names_that_are_gone_are_forgotten() -> None:
    health = Health()
    health.note_failure("w", 0.0, is_fatal=True)
    health.forget_all_but(["other"])
    assert health.verdict("w", 0.0, is_probed=True) == WELL


def test_a_dying_fleet_gets_a_share_of_retries_and_a_dying_replica_all_of_its_own() -> None:
    budget = RetryBudget(0.0)
    assert all(budget.spend(0.0, num_under_way=500) for _ in range(500))
    assert not budget.spend(0.0, num_under_way=500)
    budget = RetryBudget(0.0)
    allowed = 0
    for _ in range(10_000):
        budget.note_request()
        allowed += budget.spend(0.0, num_under_way=10)
    assert allowed == pytest.approx(RESERVE + SHARE * 10_000, rel=0.01)
    assert sum(budget.spend(1.0, num_under_way=10) for _ in range(100)) == pytest.approx(REFILL_PER_S, abs=1)
