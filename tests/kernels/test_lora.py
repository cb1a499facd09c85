"""Adapters of a mixed batch, by the native kernels and by torch's, against one token at a time in fp64."""

import random

import pytest
import torch

from kernels.lora import LoraPages, LoraPlan, add_lora, empty_pages, plan_lora, reference
from kernels.lora.native import can_add

CHUNK_SLOTS, CHUNK_LENS = [2, -1, 0, 3, 2, -1, 4, 0, 1], [1, 2, 1, 60, 3, 1, 13, 1, 2]
SLOTS = [slot for slot, length in zip(CHUNK_SLOTS, CHUNK_LENS, strict=True) for _ in range(length)]
RANKS = (1, 8, 16, 24, 64)
SIZES = [(64, (40,)), (44, (24, 8, 9)), (1000, (700, 1030))]


def make(in_size: int, slice_sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[LoraPages, list[list[int]]]:
    """Adapters of those ranks in scattered pages, whatever is not theirs NaN; slot 1 leaves the last slice alone."""
    torch.manual_seed(0)
    pages = empty_pages(20, in_size=in_size, slice_sizes=slice_sizes, dtype=dtype)
    pages.a.fill_(torch.nan)
    pages.b.fill_(torch.nan)
    free = list(range(20))
    random.Random(0).shuffle(free)
    slot_pages = [[free.pop() for _ in range(0, rank, 16)] for rank in RANKS]
    for slot, rank in enumerate(RANKS):
        for s, size in enumerate(slice_sizes[: -1 if slot == 1 else None]):
            a, b = torch.randn(rank, in_size) * in_size**-0.5, torch.randn(rank, size)
            for page, first in zip(slot_pages[slot], range(0, rank, 16), strict=True):
                pages.write(page, s, a[first : first + 16], b[first : first + 16])
    return pages, slot_pages


def truth_of(y: torch.Tensor, x: torch.Tensor, pages: LoraPages, slot_pages: list[list[int]]) -> torch.Tensor:
    y = y.double()
    for token, slot in enumerate(SLOTS):
        for page in slot_pages[slot] if slot >= 0 else ():
            for s, rank in enumerate(pages.ranks[page].tolist()):
                outputs = slice(*pages.offsets[s : s + 2])
                shrunk = x[token].double() @ pages.a[page, s, :rank].double().T
                y[token, outputs] += shrunk @ pages.b[page, :rank, outputs].double()
    return y


def plan_of(slot_pages: list[list[int]], max_run: int = 7) -> LoraPlan:
    plan = plan_lora(CHUNK_SLOTS, CHUNK_LENS, slot_pages, max_run=max_run)
    assert plan is not None
    return plan


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("in_size", "slice_sizes"), SIZES)
def test_each_token_gets_its_own_delta_and_others_none(
    in_size: int, slice_sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    pages, slot_pages = make(in_size, slice_sizes, dtype)
    x, y = torch.randn(len(SLOTS), in_size).to(dtype), torch.randn(len(SLOTS), sum(slice_sizes)).to(dtype)
    truth = truth_of(y, x, pages, slot_pages)
    by_torch, before = y.clone(), y.clone()
    reference.add_lora(by_torch, x, pages, plan_of(slot_pages))
    add_lora(y, x, pages, plan_of(slot_pages))
    error, limit = (y.double() - truth).abs().max(), (by_torch.double() - truth).abs().max()
    assert error <= 2 * limit + 1e-6
    assert limit < (1e-4 if dtype == torch.float32 else 0.25)
    plain = [token for token, slot in enumerate(SLOTS) if slot < 0]
    assert torch.equal(y[plain], before[plain])


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_same_bits_alone_and_in_runs_of_any_length(dtype: torch.dtype, is_native: bool) -> None:
    in_size, slice_sizes = SIZES[2]
    pages, slot_pages = make(in_size, slice_sizes, dtype)
    if is_native and not can_add(pages):
        pytest.skip("no native kernels here")
    add = add_lora if is_native else reference.add_lora
    x, y = torch.randn(len(SLOTS), in_size).to(dtype), torch.randn(len(SLOTS), sum(slice_sizes)).to(dtype)
    together = {}
    for max_run in (1, 2, 5, 48):
        together[max_run] = y.clone()
        add(together[max_run], x, pages, plan_of(slot_pages, max_run))
    assert all(torch.equal(each, together[1]) for each in together.values())
    for token in range(0, len(SLOTS), 5):
        alone = y[token : token + 1].clone()
        plan = plan_lora([SLOTS[token]], [1], slot_pages, max_run=48)
        if plan is not None:
            add(alone, x[token : token + 1], pages, plan)
        assert torch.equal(alone[0], together[48][token])


def test_an_adapter_whose_products_overflow_breaks_only_its_own_tokens() -> None:
    pages, slot_pages = make(64, (40,), torch.float32)
    pages.a[slot_pages[2][0], 0, :16] = 3e38
    y = torch.zeros(len(SLOTS), 40)
    add_lora(y, torch.full((len(SLOTS), 64), 2.0), pages, plan_of(slot_pages))
    assert y.isfinite().all(dim=1).tolist() == [slot != 2 for slot in SLOTS]


def test_what_does_not_fit_is_refused() -> None:
    pages, slot_pages = make(64, (40,), torch.float32)
    plan = plan_of(slot_pages)
    x, y = torch.ones(len(SLOTS), 64), torch.ones(len(SLOTS), 40)
    for bad_y, bad_x in [
        (y, x[:, :63]),
        (y[:, :39], x),
        (y[1:], x[1:]),
        (y.bfloat16(), x),
        (y, torch.ones(64, len(SLOTS)).T),
    ]:
        with pytest.raises(ValueError, match="do not fit"):
            add_lora(bad_y, bad_x, pages, plan)
