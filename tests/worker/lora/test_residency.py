"""Who is in the slots, over random comings and goings: nothing pinned is evicted, and everybody gets a turn."""

import math
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.lora.residency import Residency, Version


def make_versions(pages: list[int]) -> list[Version]:
    return [Version(f"a{i}", str(i), Path(), num_pages) for i, num_pages in enumerate(pages)]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=9),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["ask", "ask", "end", "load", "fail"]), st.integers(0, 8)), max_size=80),
)
def test_every_page_has_one_owner_and_what_is_pinned_stays(
    pages: list[int], num_slots: int, events: list[tuple[str, int]]
) -> None:
    versions = make_versions(pages)
    residency = Residency(num_slots=num_slots, num_pages=6)
    loading: list[Version] = []
    waiting: Counter[Version] = Counter()

    def advance() -> None:
        to_load, opened = residency.advance()
        loading.extend(to_load)
        for version in opened:
            admit(version)
        residency.check()

    def admit(version: Version) -> None:
        for _ in range(waiting.pop(version, 0)):
            assert residency.pin(version, has_turn=True)

    for kind, i in events:
        version = versions[i % len(versions)]
        pinned = {each: list(each.page_ids) for each in versions if each.num_pins}
        if kind == "ask" and not residency.pin(version):
            waiting[version] += 1
            residency.want(version)
        elif kind == "end" and version.num_pins:
            residency.unpin(version)
        elif kind in ("load", "fail") and loading:
            done = loading.pop(i % len(loading))
            if kind == "load":
                residency.finish(done)
                admit(done)
            else:
                residency.fail(done)
                waiting.pop(done, None)
        advance()
        for each, page_ids in pinned.items():
            assert not each.num_pins or (each.page_ids == page_ids and each.state == "resident")
    # When all end, everybody who still waits gets in.
    for _ in range(1000):
        for version in versions:
            while version.num_pins:
                residency.unpin(version)
        advance()
        while loading:
            version = loading.pop()
            residency.finish(version)
            admit(version)
    assert not waiting
    assert residency.advance() == ([], [])


@pytest.mark.parametrize(("num_adapters", "num_slots"), [(64, 8), (9, 8), (20, 3)])
def test_with_more_adapters_than_slots_nobody_waits_longer_than_its_rotations(
    num_adapters: int, num_slots: int
) -> None:
    """Requests of 10 steps at random, loads of 2 steps; a hot adapter is asked for in every step."""
    duration, load_steps = 10, 2
    rng, versions = random.Random(0), make_versions([1] * num_adapters)
    residency = Residency(num_slots=num_slots, num_pages=num_slots)
    waiting: dict[Version, list[int]] = {}
    loads: list[tuple[int, Version]] = []
    running: list[tuple[int, Version]] = []
    waits: list[int] = []

    def admit(version: Version, step: int) -> None:
        for since in waiting.pop(version, ()):
            assert residency.pin(version, has_turn=True)
            running.append((step + duration, version))
            waits.append(step - since)

    for step in range(3000):
        for version in [versions[0], *rng.choices(versions, k=2)]:
            if residency.pin(version):
                running.append((step + duration, version))
                waits.append(0)
            else:
                waiting.setdefault(version, []).append(step)
                residency.want(version)
        for at, version in [each for each in running if each[0] == step]:
            running.remove((at, version))
            residency.unpin(version)
        ready = [version for at, version in loads if at == step]
        loads = [each for each in loads if each[0] > step]
        for version in ready:
            residency.finish(version)
            admit(version, step)
        to_load, opened = residency.advance()
        loads += [(step + load_steps, version) for version in to_load]
        for version in opened:
            admit(version, step)
    rotation = duration + load_steps + 2
    assert sorted(waits)[int(len(waits) * 0.99)] <= math.ceil(num_adapters / num_slots) * rotation
    assert max(waits) <= (math.ceil(num_adapters / num_slots) + 1) * rotation


def test_the_least_recently_used_gives_way_and_only_as_many_as_needed() -> None:
    a, b, c, big = make_versions([1, 1, 1, 3])
    residency = Residency(num_slots=3, num_pages=4)
    for version in (a, b, c):
        residency.want(version)
        residency.advance()
        residency.finish(version)
    assert residency.pin(a)
    residency.unpin(a)
    residency.want(big)
    assert residency.advance() == ([big], [])
    assert [version.state for version in (a, b, c)] == ["resident", "away", "away"]


def test_room_that_nobody_wants_any_more_opens_who_was_closed() -> None:
    a, b = make_versions([1, 1])
    residency = Residency(num_slots=1, num_pages=1)
    residency.want(a)
    residency.advance()
    residency.finish(a)
    assert residency.pin(a)
    residency.want(b)
    residency.advance()
    assert not residency.pin(a)
    residency.unwant(b)
    residency.advance()
    assert residency.pin(a)
