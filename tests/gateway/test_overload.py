"""Beyond its capacity the gateway refuses, batch first and enterprise last, and nobody as soon as it can keep up."""

import asyncio
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.errors import Saturated
from gateway.metrics import PRIORITY_CLASSES, Metrics
from gateway.overload import BEAT_S, BURST_BEATS, Bounds, LoopLag, OverloadGuard, Shedder

PRIORITIES = range(4)
LATENESS_S = st.floats(0, 5)
DEADLINE_S = 30


def refused_priorities(guard: OverloadGuard) -> list[int]:
    return [priority for priority in PRIORITIES if is_refused(guard, priority)]


def is_refused(guard: OverloadGuard, priority: int) -> bool:
    try:
        guard.check(priority)
    except Saturated:
        return True
    return False


def num_refusals(metrics: Metrics, name: str) -> float:
    samples = {key: value for family in metrics.snapshot() for key, value in family.samples.items()}
    return samples["tiergate_overload_refusals_total", (("class", name),)]


@given(
    st.lists(LATENESS_S), st.integers(0, 2000), st.lists(st.sampled_from(PRIORITIES)), st.integers(0, 60), LATENESS_S
)
def test_a_class_is_never_refused_before_a_lower_one(
    beats: list[float], num_preparing: int, refusals: list[int], num_rounds: int, round_lag_s: float
) -> None:
    lag, shedder = LoopLag(), Shedder(Bounds())
    for lateness_s in beats:
        lag.note(lateness_s)
        shedder.note_beat(lag.lag_s)
    for _ in range(num_rounds):
        for priority in refusals:
            shedder.note_refusal(priority)
        shedder.note_beat(round_lag_s)
    refused = [shedder.refuses(priority, num_preparing=num_preparing) for priority in PRIORITIES]
    assert refused == sorted(refused)
    # Whoever has shown no key may be enterprise.
    assert not shedder.refuses(len(PRIORITY_CLASSES) - 1, num_preparing=num_preparing) or all(refused)


def refused_from(shedder: Shedder) -> list[int]:
    """The number in preparation from which each class is refused."""
    counts = range(5000)
    return [
        next(n for n in counts if shedder.refuses(index, num_preparing=n)) for index in range(len(PRIORITY_CLASSES))
    ]


def refuse(shedder: Shedder, priority: int, *, beats: int, every: int = 1, lag_s: float = 0.03) -> None:
    """Go on for so many beats, with a refusal in one of `every`."""
    for beat in range(beats):
        if beat % every == 0:
            shedder.note_refusal(priority)
        shedder.note_beat(lag_s)


def test_a_burst_may_fill_the_bound_and_lasting_overload_half_of_it() -> None:
    shedder, bounds = Shedder(Bounds()), Bounds().preparing
    refuse(shedder, 1, beats=BURST_BEATS)
    assert refused_from(shedder) == list(bounds)
    # A moment without refusals does not begin another burst.
    refuse(shedder, 1, beats=10, every=5)
    assert refused_from(shedder) == [bounds[0], *(bound // 2 for bound in bounds[1:4]), bounds[4]]


@pytest.mark.parametrize(("every", "lag_s"), [(1, 0.005), (1000, 0.03)], ids=["it waits for others", "refuses nobody"])
def test_a_loop_that_has_caught_up_has_room_for_the_whole_bound(every: int, lag_s: float) -> None:
    shedder, bounds = Shedder(Bounds()), Bounds().preparing
    refuse(shedder, 0, beats=2 * BURST_BEATS)
    assert refused_from(shedder)[0] == bounds[0] // 2
    refuse(shedder, 0, beats=20, every=every, lag_s=lag_s)
    assert refused_from(shedder) == list(bounds)
    refuse(shedder, 0, beats=BURST_BEATS)
    assert refused_from(shedder) == list(bounds)


@given(st.lists(LATENESS_S))
def test_one_beat_in_time_ends_it(beats: list[float]) -> None:
    guard = OverloadGuard(Metrics())
    for lateness_s in beats:
        guard.note_beat(lateness_s)
    guard.note_beat(0.001)
    assert refused_priorities(guard) == []


@given(st.lists(st.floats(0, Bounds().lag_s[3] / 2, exclude_max=True), min_size=1), st.floats(0, 3600))
def test_one_stall_is_no_overload(beats: list[float], stall_s: float) -> None:
    guard = OverloadGuard(Metrics())
    for lateness_s in (*beats, stall_s, *beats):
        guard.note_beat(lateness_s)
        assert refused_priorities(guard) == []


@given(st.floats(Bounds().lag_s[0], 5), st.integers(2, 20))
def test_lag_that_lasts_refuses_all(lateness_s: float, num_beats: int) -> None:
    guard = OverloadGuard(Metrics())
    for _ in range(num_beats):
        guard.note_beat(lateness_s)
    assert refused_priorities(guard) == list(PRIORITIES)


@given(st.sampled_from(PRIORITIES), st.lists(st.floats(0.5, 0.99), min_size=2, max_size=20))
def test_lag_about_a_bound_does_not_flicker(priority: int, factors: list[float]) -> None:
    """Refused since the bound was reached, a class stays refused until the lag is half of it."""
    bound_s = Bounds().lag_s[priority]
    shedder = Shedder(Bounds())
    shedder.note_beat(bound_s)
    for factor in factors:
        shedder.note_beat(bound_s * factor)
        assert shedder.refuses(priority, num_preparing=0)
    shedder.note_beat(bound_s * 0.49)
    assert not shedder.refuses(priority, num_preparing=0)


@given(st.lists(st.tuples(st.sampled_from(PRIORITIES), st.booleans()), max_size=200))
def test_work_in_preparation_stays_within_its_bounds(arrivals: list[tuple[int, bool]]) -> None:
    bounds = Bounds(preparing=(12, 9, 6, 3, 48))
    guard, under_way = OverloadGuard(Metrics(), bounds=bounds), []
    for priority, does_one_end in arrivals:
        if does_one_end and under_way:
            under_way[-1].end()
            # The second time changes nothing.
            under_way.pop().end()
        before = guard.num_preparing
        try:
            under_way.append(guard.begin(priority))
        except Saturated:
            assert before >= bounds.preparing[priority]
        else:
            assert before < bounds.preparing[priority]
        assert guard.num_preparing == len(under_way) <= bounds.preparing[0]


@given(st.integers(0, 2**32))
def test_a_refusal_says_when_to_come_back_and_is_counted(seed: int) -> None:
    metrics = Metrics()
    guard = OverloadGuard(metrics, bounds=Bounds(preparing=(0, 0, 0, 0, 0)), jitter=random.Random(seed))
    for priority, name in enumerate(PRIORITY_CLASSES[:-1]):
        with pytest.raises(Saturated) as refused:
            guard.check(priority)
        assert refused.value.status == 503 and refused.value.code == "gateway_overloaded"
        assert refused.value.headers()["retry-after"] in ("1", "2", "3")
        assert num_refusals(metrics, name) == 1
    with pytest.raises(Saturated):
        guard.check_unknown()
    assert num_refusals(metrics, "unknown") == 1


async def test_a_loop_that_is_too_busy_is_measured_and_recovers() -> None:
    guard = OverloadGuard(Metrics())
    is_busy = True

    async def keep_busy() -> None:
        """Each turn of the loop takes far longer than enterprise may wait."""
        while is_busy:
            until_s = time.monotonic() + 2 * Bounds().lag_s[0]
            while time.monotonic() < until_s:
                pass
            await asyncio.sleep(0)

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        beating = group.create_task(guard.beat_forever())
        working = group.create_task(keep_busy())
        while not is_refused(guard, 0):  # noqa: ASYNC110
            await asyncio.sleep(BEAT_S)
        is_busy = False
        await working
        while refused_priorities(guard):  # noqa: ASYNC110
            await asyncio.sleep(BEAT_S)
        beating.cancel()


async def test_requests_whose_tasks_have_not_run_yet_count() -> None:
    guard, bounds = OverloadGuard(Metrics()), Bounds()
    for _ in range(bounds.preparing[3] - 1):
        guard.note_arrival()
    assert refused_priorities(guard) == []
    guard.note_arrival()
    assert refused_priorities(guard) == [3]
    for _ in range(bounds.preparing[0]):
        guard.note_arrival()
    assert refused_priorities(guard) == [*PRIORITIES]
    # In the next turn they have run, and count as what they have become.
    await asyncio.sleep(0)
    assert refused_priorities(guard) == []
    guard.note_arrival()
    await asyncio.sleep(0)
    assert not guard.is_shedding
