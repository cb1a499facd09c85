"""The GPU's LoRA kernels on the stand-in: any mix of ranks in one launch, and bits that no batch may change."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import kernels.lora.kernel
from kernels.lora import LoraPages, add_lora, empty_pages, plan_lora
from kernels.lora.tables import GPU_RUN, LoraTables, put_plan
from tests.kernels.accuracy import assert_exact, generator
from tests.kernels.hopper import Hopper, on_hopper
from tests.kernels.memory_watch import MemoryFault
from tests.kernels.planting import planted

RANKS = (4, 16, 40, 256, 8)


def _pages(
    ranks: Sequence[int], in_size: int, slice_sizes: Sequence[int], dtype: torch.dtype
) -> tuple[LoraPages, list[list[int]], list[list[tuple[Tensor, Tensor]]]]:
    """Pages that lie anywhere, NaN beyond the ranks; each slot's pages; each slot's a and b by slice. An adapter of
    rank 8 leaves the last of several slices alone."""
    counts = [-(-rank // 16) for rank in ranks]
    order = (torch.randperm(sum(counts), generator=generator(3)) + 1).tolist()
    pages = empty_pages(sum(counts) + 1, in_size=in_size, slice_sizes=slice_sizes, dtype=dtype)
    pages.a.fill_(float("nan"))
    pages.b.fill_(float("nan"))
    slot_pages, weights = [], []
    for slot, (rank, count) in enumerate(zip(ranks, counts, strict=True)):
        random = generator(100 + slot)
        own = [order.pop() for _ in range(count)]
        pairs = []
        for part, size in enumerate(slice_sizes):
            a = (torch.randn(rank, in_size, generator=random) / in_size**0.5).to(dtype)
            b = (torch.randn(rank, size, generator=random) / rank**0.5).to(dtype)
            if rank == 8 and part == len(slice_sizes) - 1 > 0:
                a, b = a[:0], b[:0]
            pairs.append((a, b))
            for i, page in enumerate(own):
                pages.write(page, part, a[16 * i : 16 * i + 16], b[16 * i : 16 * i + 16])
        slot_pages.append(own)
        weights.append(pairs)
    return pages, slot_pages, weights


def _tables(slots: Sequence[int], slot_pages: list[list[int]]) -> LoraTables:
    plan = plan_lora(slots, [1] * len(slots), slot_pages, max_run=GPU_RUN)
    assert plan is not None
    return put_plan(plan, "cpu")


def _torchs(y: Tensor, x: Tensor, slots: Sequence[int], weights: list[list[tuple[Tensor, Tensor]]]) -> Tensor:
    """In y's dtype."""
    out = y.clone()
    for i, slot in enumerate(slots):
        if slot >= 0:
            row = torch.cat([(x[i] @ a.T.to(y.dtype)) @ b.to(y.dtype) for a, b in weights[slot]])
            out[i] += row
    return out


SLOTS = [0, 1, -1, 2, 2, 3, -1, *[4] * 20, 0, 3]


@pytest.mark.parametrize(
    ("dtype", "in_size", "slice_sizes"),
    [
        (torch.bfloat16, 384, (384, 128, 128)),
        (torch.float16, 512, (512, 208)),
        (torch.float32, 200, (72,)),
    ],
)
def test_mixed_ranks_are_right(hopper: Hopper, dtype: torch.dtype, in_size: int, slice_sizes: tuple[int, ...]) -> None:
    pages, slot_pages, weights = _pages(RANKS, in_size, slice_sizes, dtype)
    x = torch.randn(len(SLOTS), in_size, generator=generator(1)).to(dtype)
    y = torch.randn(len(SLOTS), sum(slice_sizes), generator=generator(2)).to(dtype)
    before = y.clone()
    add_lora(y, x, pages, _tables(SLOTS, slot_pages))
    assert_exact(y, _torchs(before.double(), x.double(), SLOTS, weights), _torchs(before, x, SLOTS, weights))
    assert all(torch.equal(y[i], before[i]) for i, slot in enumerate(SLOTS) if slot < 0)
    shrink, expand = hopper.launched
    if dtype != torch.float32:
        assert shrink.num_wide_loads and expand.num_wide_loads
        assert shrink.bytes_in_flight >= 40 * 1024, shrink


def test_a_token_has_the_same_bits_in_any_batch_and_beside_any_room(hopper: Hopper) -> None:
    pages, slot_pages, _ = _pages(RANKS, 256, (128, 64, 64), torch.bfloat16)
    x, base = torch.randn(1, 256).bfloat16(), torch.randn(1, 256).bfloat16()
    outs = []
    for slots in ([3], [0, 3, 1, -1], [*[3] * 17, 2], [1, 1, 1, 3]):
        tables = _tables(slots, slot_pages)
        for room in (0, 5):
            roomy = replace(tables, most_rows=tables.most_rows + room, most_places=tables.most_places + room)
            roomy = replace(roomy, shrink=torch.cat((roomy.shrink, torch.full((room, 4), -1, dtype=torch.int32))))
            y = base.repeat(len(slots), 1)
            add_lora(y, x.repeat(len(slots), 1), pages, roomy)
            outs.append(y[slots.index(3)])
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_no_work_touches_nothing(hopper: Hopper) -> None:
    pages, slot_pages, _ = _pages(RANKS, 256, (64,), torch.bfloat16)
    tables = _tables([0], slot_pages)
    y = torch.randn(1, 64).bfloat16()
    before = y.clone()
    empty = replace(tables, counts=torch.zeros(2, dtype=torch.int32))
    add_lora(y, torch.full((1, 256), float("nan")).bfloat16(), pages, empty)
    assert torch.equal(y, before)


def test_the_shapes_of_real_models_compile_well() -> None:
    with on_hopper(interprets=False) as hopper:
        for in_size, sizes in ((4096, (4096, 1024, 1024)), (14336, (4096,))):
            pages = empty_pages(1, in_size=in_size, slice_sizes=sizes, dtype=torch.bfloat16)
            tables = _tables([0], [[0]])
            y = torch.empty(1, sum(sizes), dtype=torch.bfloat16)
            add_lora(y, torch.empty(1, in_size, dtype=torch.bfloat16), pages, tables)
        assert all(cubin.bytes_in_flight >= 40 * 1024 for cubin in hopper.launched), hopper.launched
        assert all(cubin.blocks_per_multiprocessor >= 4 for cubin in hopper.launched)


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("is_row, part = at < num_rows", "is_row, part = at <= num_rows", "both write|outside"),
        ("(place * RANKS + column % RANKS)[None, :]", "(column % RANKS)[None, :]", "both write"),
        ("(page * SLICES * RANKS + column)", "(page * RANKS + column)", None),
        ("row < tl.load(ranks + page * SLICES + part)", "row < 16", None),
        ("(at < num_rows)[:, None], (column", "(at <= num_rows)[:, None], (column", "both write|outside"),
        ("column < end", "column <= end", "both write|outside"),
        ("range(0, num_pages)", "range(1, num_pages)", None),
    ],
)
def test_faults_planted_into_lora_are_found(
    hopper: Hopper, tmp_path: Path, right: str, wrong: str, found: str | None
) -> None:
    """None: by the numbers."""
    faulty = planted(kernels.lora.kernel, tmp_path, right, wrong)
    pages, slot_pages, weights = _pages((4, 40), 128, (64, 40), torch.float16)
    x, y = torch.randn(5, 128).half(), torch.zeros(5, 104).half()
    slots = [0, 1, 1, -1, 0]
    if found:
        with pytest.raises(MemoryFault, match=found):
            faulty.add_lora(y, x, pages, _tables(slots, slot_pages))
    else:
        faulty.add_lora(y, x, pages, _tables(slots, slot_pages))
        assert not torch.allclose(y, _torchs(torch.zeros_like(y), x, slots, weights), rtol=1e-2, atol=1e-2)
    # The faulty kernel may have whatever registers it takes.
    hopper.launched.clear()
