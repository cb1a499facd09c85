"""The work list and the pages, over random steps: every token once, true ranks only, the right deltas."""

import mmap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.lora import reference
from kernels.lora.pages import LoraPages, empty_pages
from kernels.lora.plan import PAGE_RANKS, Expand, LoraPlan, Shrink, plan_lora

IN_SIZE, SLICE_SIZES = 12, (9, 4, 5)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Chunks' slots, chunks' lengths, slots' ranks."""
    ranks = draw(st.lists(st.sampled_from([0, 1, 8, 15, 16, 17, 32, 40]), min_size=1, max_size=6))
    slots = draw(st.lists(st.integers(-1, len(ranks) - 1), max_size=12))
    return slots, [draw(st.integers(0, 9)) for _ in slots], ranks


def pages_of(ranks: list[int], num_pages: int = 64) -> list[list[int]]:
    """Each slot's pages, scattered."""
    free = torch.randperm(num_pages, generator=torch.Generator().manual_seed(len(ranks))).tolist()
    return [[free.pop() for _ in range(-(-rank // PAGE_RANKS))] for rank in ranks]


@given(steps(), st.integers(1, 7))
def test_every_token_with_an_adapter_meets_each_of_its_pages_once(
    step: tuple[list[int], list[int], list[int]], max_run: int
) -> None:
    slots, lens, ranks = step
    slot_pages = pages_of(ranks)
    of_token = [slot for slot, length in zip(slots, lens, strict=True) for _ in range(length)]
    wanted = {(token, page) for token, slot in enumerate(of_token) if slot >= 0 for page in slot_pages[slot]}
    plan = plan_lora(slots, lens, slot_pages, max_run=max_run)
    if plan is None:
        assert not wanted
        return
    rows, met, places = plan.rows.tolist(), [], {}
    for item in map(Shrink._make, plan.shrink.tolist()):
        assert 1 <= item.num_rows <= max_run
        met += [(token, item.page) for token in rows[item.first : item.first + item.num_rows]]
        places[item.page] = item.place
    assert len(met) == len(set(met)) and set(met) == wanted
    assert len(rows) == len(set(rows)) and plan.num_tokens == len(of_token)
    for run in map(Expand._make, plan.expand.tolist()):
        tokens = rows[run.first : run.first + run.num_rows]
        own = plan.pages[run.first_page : run.first_page + run.num_pages].tolist()
        assert tokens == sorted(tokens) and all(slot_pages[of_token[token]] == own for token in tokens)
        assert [places[page] for page in own] == list(range(len(own))) and len(own) <= plan.num_places
    assert sum(run[3] for run in plan.expand.tolist()) == len(rows)


def test_an_adapter_that_no_token_uses_is_in_no_list() -> None:
    plan = plan_lora([2, -1], [3, 4], [[0], [1], [5, 3], [2]], max_run=16)
    assert plan is not None
    assert plan.pages.tolist() == [5, 3]
    assert plan.shrink.tolist() == [[5, 0, 3, 0], [3, 0, 3, 1]]
    assert plan.expand.tolist() == [[0, 2, 0, 3]]


@pytest.mark.parametrize("slots", [[], [-1, -1], [1]])
def test_a_step_without_adapters_has_no_plan(slots: list[int]) -> None:
    assert plan_lora(slots, [2] * len(slots), [[0], []], max_run=16) is None


@settings(deadline=None)
@given(steps(), st.integers(1, 7), st.integers(0, 2))
def test_the_reference_gives_each_token_its_own_delta_and_reads_nothing_beyond_true_ranks(
    step: tuple[list[int], list[int], list[int]], max_run: int, left_alone: int
) -> None:
    slots, lens, ranks = step
    slot_pages = pages_of(ranks)
    pages, pairs = nan_pages(ranks, slot_pages, left_alone)
    plan = plan_lora(slots, lens, slot_pages, max_run=max_run)
    of_token = [slot for slot, length in zip(slots, lens, strict=True) for _ in range(length)]
    x, y = torch.randn(len(of_token), IN_SIZE), torch.randn(len(of_token), sum(SLICE_SIZES))
    truth = y.double()
    for token, slot in enumerate(of_token):
        for s, (a, b) in pairs[slot].items() if slot >= 0 else ():
            truth[token, slice(*pages.offsets[s : s + 2])] += x[token].double() @ a.double().T @ b.double()
    before = y.clone()
    if plan is not None:
        reference.add_lora(y, x, pages, plan)
    torch.testing.assert_close(y.double(), truth, atol=1e-4, rtol=1e-4)
    plain = [token for token, slot in enumerate(of_token) if slot < 0]
    assert torch.equal(y[plain], before[plain])


def nan_pages(
    ranks: list[int], slot_pages: list[list[int]], left_alone: int
) -> tuple[LoraPages, list[dict[int, tuple[torch.Tensor, torch.Tensor]]]]:
    """Pages full of NaN but for the adapters, and each adapter's pairs by slice; slot 0 has none for `left_alone`."""
    pages = empty_pages(64, in_size=IN_SIZE, slice_sizes=SLICE_SIZES, dtype=torch.float32)
    pages.a.fill_(torch.nan)
    pages.b.fill_(torch.nan)
    pairs: list[dict[int, tuple[torch.Tensor, torch.Tensor]]] = []
    for slot, rank in enumerate(ranks):
        pairs.append({})
        for s, size in enumerate(SLICE_SIZES):
            if slot == 0 and s == left_alone:
                continue
            a, b = pairs[slot][s] = torch.randn(rank, IN_SIZE), torch.randn(rank, size)
            for place, page in enumerate(slot_pages[slot]):
                part = slice(place * PAGE_RANKS, (place + 1) * PAGE_RANKS)
                pages.write(page, s, a[part], b[part])
    return pages, pairs


def test_what_does_not_fit_a_page_is_refused() -> None:
    pages = empty_pages(2, in_size=IN_SIZE, slice_sizes=SLICE_SIZES, dtype=torch.float32)
    for a, b in [((17, 12), (17, 9)), ((4, 11), (4, 9)), ((4, 12), (4, 5)), ((4, 12), (3, 9))]:
        with pytest.raises(ValueError, match="do not fit slice 0"):
            pages.write(0, 0, torch.zeros(a), torch.zeros(b))
    assert not pages.ranks.any()
    pages.write(1, 2, torch.zeros(3, 12), torch.zeros(3, 5))
    assert pages.ranks.tolist() == [[0, 0, 0], [0, 0, 3]]
    pages.clear(1)
    assert not pages.ranks.any()


def test_a_page_that_is_released_is_the_systems_again_and_its_neighbours_stay() -> None:
    # Rows of one of the system's pages each.
    columns = mmap.PAGESIZE // (PAGE_RANKS * 4)
    pages = empty_pages(3, in_size=columns, slice_sizes=[columns], dtype=torch.float32)
    for page in range(3):
        pages.write(page, 0, torch.ones(PAGE_RANKS, columns), torch.ones(PAGE_RANKS, columns))
    pages.release(1)
    assert pages.ranks.flatten().tolist() == [PAGE_RANKS, 0, PAGE_RANKS]
    for tensor in (pages.a, pages.b):
        # What the system gives anew is zero.
        assert [bool(row.any()) for row in tensor] == [True, False, True]
        assert bool(tensor[[0, 2]].all())
    pages.write(1, 0, torch.ones(3, columns), torch.ones(3, columns))
    assert pages.ranks[1].tolist() == [3] and bool(pages.a[1, 0, :3].all())


def test_a_plan_is_contiguous_and_of_small_integers() -> None:
    plan = plan_lora([0, 1], [3, 70], [[0, 1], [7]], max_run=32)
    assert isinstance(plan, LoraPlan)
    for tensor in (plan.rows, plan.pages, plan.shrink, plan.expand):
        assert tensor.is_contiguous() and tensor.dtype == torch.int32
    assert [run[3] for run in plan.expand.tolist()] == [3, 32, 32, 6]
