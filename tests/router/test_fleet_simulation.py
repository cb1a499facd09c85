"""A pool under adapters and prompt beginnings of which few are asked for often: the router against simpler rules."""

import pytest

from tests.support.fleet_simulation import Outcome, by_load, by_router, by_turns, make_requests, simulate


def outcomes(num_requests: int, *, num_replicas: int, staleness_s: float = 0.0) -> tuple[Outcome, Outcome, Outcome]:
    """Round robin's, least-loaded's and the router's."""
    turns, least, router = (
        simulate(
            choose,
            make_requests(num_requests, rate=5.5 * num_replicas),
            num_replicas=num_replicas,
            staleness_s=staleness_s,
        )
        for choose in (by_turns(), by_load(), by_router())
    )
    return turns, least, router


def check(turns: Outcome, least: Outcome, router: Outcome) -> None:
    assert router.ttft_p95_s <= 0.7 * turns.ttft_p95_s
    assert 3 * router.cold_loads <= least.cold_loads
    assert router.cached_share > least.cached_share


def test_first_tokens_come_sooner_and_adapters_are_loaded_less() -> None:
    check(*outcomes(8_000, num_replicas=50))


def test_the_same_simulation_ends_the_same() -> None:
    first, again = (simulate(by_router(), make_requests(500, rate=50), num_replicas=10) for _ in range(2))
    assert first == again


@pytest.mark.long
def test_of_a_hundred_thousand_requests_over_fifty_replicas() -> None:
    check(*outcomes(100_000, num_replicas=50))


@pytest.mark.long
@pytest.mark.parametrize("staleness_s", [0.5, 5.0])
def test_pictures_may_be_old_in_a_fleet_of_a_thousand(staleness_s: float) -> None:
    turns, router = (
        simulate(choose, make_requests(30_000, rate=5500), num_replicas=1000, staleness_s=staleness_s)
        for choose in (by_turns(), by_router())
    )
    assert router.ttft_p95_s <= 0.85 * turns.ttft_p95_s
    assert 2 * router.cold_loads <= turns.cold_loads
