"""Paged attention against the textbook formula in fp64, over scattered blocks full of others' leftovers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.native import set_num_threads
from kernels.paged_attention import native, paged_attention, plan_attention, reference, tiles

BLOCK, NUM_BLOCKS = 16, 64


@dataclass(frozen=True)
class Batch:
    q: Tensor
    cache: Tensor
    query_lens: list[int]
    context_lens: list[int]
    tables: list[list[int]]


def make_batch(lens: list[tuple[int, int]], *, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> Batch:
    """lens: (new tokens, tokens of context with them) for each sequence."""
    generator = torch.Generator().manual_seed(len(lens) + heads)
    cache = torch.randn(NUM_BLOCKS, BLOCK, 2 * kv_heads, head_dim, generator=generator).to(dtype)
    # Queries are a slice of the fused projection's output in the model: rows are not dense.
    wide = torch.randn(sum(new for new, _ in lens), heads + 2, head_dim, generator=generator).to(dtype)
    ids = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
    tables = []
    for _, context in lens:
        count = -(-context // BLOCK)
        tables.append(ids[:count])
        ids = ids[count:]
    return Batch(wide[:, :heads], cache, [n for n, _ in lens], [c for _, c in lens], tables)


Run = Callable[..., Tensor]


PATHS = {"chosen": paged_attention, "torch": reference.paged_attention, "tiles": tiles.paged_attention}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def run(request: pytest.FixtureRequest) -> Run:
    """By the path that this machine chooses, and by torch's, which others have."""

    def attend(batch: Batch, scale: float, window: int | None = None) -> Tensor:
        plan = plan_attention(
            batch.query_lens,
            batch.context_lens,
            batch.tables,
            block_size=BLOCK,
            dtype=batch.cache.dtype,
            window=window,
        )
        out: Tensor = request.param(batch.q, batch.cache, plan, scale=scale)
        return out

    return attend


def textbook(batch: Batch, scale: float, window: int | None = None) -> Tensor:
    """softmax(q k^T) v, one token and one head at a time, fp64."""
    kv_heads = batch.cache.shape[2] // 2
    rows = []
    q = iter(batch.q.double())
    for new, context, table in zip(batch.query_lens, batch.context_lens, batch.tables, strict=True):
        tokens = batch.cache[table].flatten(0, 1).double()
        for position in range(context - new, context):
            first = 0 if window is None else max(position + 1 - window, 0)
            heads = next(q)
            shared = len(heads) // kv_heads
            out = []
            for h, head in enumerate(heads):
                keys, values = (tokens[first : position + 1, h // shared + offset] for offset in (0, kv_heads))
                out.append(torch.softmax(scale * keys @ head, dim=0) @ values)
            rows.append(torch.cat(out))
    return torch.stack(rows)


MIXES = {
    "one token": [(1, 1)],
    "decodes of all lengths": [(1, 1), (1, 15), (1, 16), (1, 17), (1, 100), (1, 333)],
    "a whole prompt": [(37, 37)],
    "a chunk in the middle": [(20, 91)],
    "a chunk of a tile and one": [(33, 65)],
    "everything": [(1, 5), (1, 64), (2, 2), (16, 48), (65, 65)],
}


@pytest.mark.parametrize("lens", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 16), (8, 2, 32), (3, 1, 40)])
def test_attention_equals_the_textbook(
    run: Run, lens: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int
) -> None:
    batch = make_batch(lens, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=torch.float32)
    scale = 1 / math.sqrt(head_dim)
    torch.testing.assert_close(run(batch, scale), textbook(batch, scale).float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 16, 33, 90, 1000])
@pytest.mark.parametrize("lens", MIXES.values(), ids=MIXES.keys())
def test_a_window_ends_what_is_looked_back_on(run: Run, lens: list[tuple[int, int]], window: int) -> None:
    batch = make_batch(lens, heads=8, kv_heads=2, head_dim=32, dtype=torch.float32)
    got, expected = run(batch, 0.2, window), textbook(batch, 0.2, window)
    torch.testing.assert_close(got, expected.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lens", MIXES.values(), ids=MIXES.keys())
def test_what_a_former_owner_left_in_a_block_does_no_harm(run: Run, lens: list[tuple[int, int]]) -> None:
    batch = make_batch(lens, heads=8, kv_heads=2, head_dim=32, dtype=torch.float32)
    before = run(batch, 0.2)
    for context, table in zip(batch.context_lens, batch.tables, strict=True):
        batch.cache[table[-1], (context - 1) % BLOCK + 1 :] = torch.nan
    assert torch.equal(run(batch, 0.2), before)


def test_blocks_before_the_window_are_not_read(run: Run) -> None:
    batch = make_batch([(1, 200), (20, 150)], heads=4, kv_heads=2, head_dim=16, dtype=torch.float32)
    before = run(batch, 0.2, window=32)
    # New tokens of the second see positions 130 - 31 = 99 and later, which block 6 begins with at 96.
    batch.cache[batch.tables[0][: (200 - 32) // BLOCK]] = torch.nan
    batch.cache[batch.tables[1][:6]] = torch.nan
    assert torch.equal(run(batch, 0.2, window=32), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_stay_within_their_rounding(run: Run, dtype: torch.dtype) -> None:
    batch = make_batch(MIXES["everything"], heads=8, kv_heads=2, head_dim=32, dtype=dtype)
    error = (run(batch, 0.2).double() - textbook(batch, 0.2)).abs().max()
    assert error <= 2 * torch.finfo(dtype).eps * batch.cache.abs().max().double()


def test_a_decode_has_the_same_bits_among_any_neighbours(run: Run) -> None:
    lens = MIXES["decodes of all lengths"]
    batch = make_batch(lens, heads=8, kv_heads=2, head_dim=32, dtype=torch.float32)
    together = run(batch, 0.2)
    for i in range(len(lens)):
        alone = Batch(batch.q[i : i + 1], batch.cache, [1], batch.context_lens[i : i + 1], batch.tables[i : i + 1])
        assert torch.equal(run(alone, 0.2)[0], together[i])


@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        (paged_attention, torch.float32),
        (paged_attention, torch.bfloat16),
        (reference.paged_attention, torch.float32),
        (tiles.paged_attention, torch.float32),
        (tiles.paged_attention, torch.bfloat16),
        (tiles.paged_attention, torch.float16),
    ],
    indirect=["run"],
    ids=["chosen-float32", "chosen-bfloat16", "torch-float32", "tiles-float32", "tiles-bfloat16", "tiles-float16"],
)
@pytest.mark.parametrize("length", [50, 66, 77, 97, 131])
def test_a_prompts_rows_have_the_same_bits_whole_in_chunks_and_one_by_one(
    run: Run, dtype: torch.dtype, length: int, request: pytest.FixtureRequest
) -> None:
    batch = make_batch([(length, length)], heads=8, kv_heads=4, head_dim=32, dtype=dtype)
    is_chosen = request.node.callspec.params["run"] is paged_attention
    if is_chosen and dtype != torch.float32 and not native.can_run(batch.q, batch.cache):
        pytest.skip("no native kernel here, and torch's own path promises this in float32 only")
    whole = run(batch, 0.2)
    for start, end in ((0, 16), (16, length), (48, length), (length - 3, length), (length - 1, length)):
        chunk = Batch(batch.q[start:end], batch.cache, [end - start], [end], batch.tables)
        assert torch.equal(run(chunk, 0.2), whole[start:end])


def test_a_long_chunk_has_the_same_bits_by_more_threads() -> None:
    # Enough for the second thread that short ones do not take.
    batch = make_batch([(1, 20), (200, 900)], heads=8, kv_heads=4, head_dim=32, dtype=torch.bfloat16)
    results = []
    try:
        for most in (1, 2):
            set_num_threads(1, torch.bfloat16, most=most)
            results.append(attend(batch))
    finally:
        set_num_threads(1, torch.bfloat16)
    assert torch.equal(*results)


def attend(batch: Batch) -> Tensor:
    plan = plan_attention(batch.query_lens, batch.context_lens, batch.tables, block_size=BLOCK, dtype=batch.cache.dtype)
    return paged_attention(batch.q, batch.cache, plan, scale=0.2)


def test_the_kernels_tables_are_not_padded() -> None:
    plan = plan_attention([1, 1, 2], [5, 64, 20], [[7], [3, 1, 4, 2], [6, 5]], block_size=BLOCK, dtype=torch.float32)
    assert plan.tables.block_ids.tolist() == [7, 3, 1, 4, 2, 6, 5]
    assert plan.tables.first_blocks.tolist() == [0, 1, 5]


def test_long_and_short_decodes_are_not_padded_to_each_other() -> None:
    lens = [(1, 10)] * 30 + [(1, 2000)] * 2
    tables = [[0] * (-(-context // BLOCK)) for _, context in lens]
    plan = plan_attention([1] * 32, [context for _, context in lens], tables, block_size=BLOCK, dtype=torch.float32)
    assert [group.num_seqs for group in plan.groups] == [30, 2]


def test_queries_that_do_not_fit_the_plan_are_refused() -> None:
    batch = make_batch([(1, 5)], heads=4, kv_heads=2, head_dim=16, dtype=torch.float32)
    plan = plan_attention([1, 1], [5, 5], batch.tables * 2, block_size=BLOCK, dtype=torch.float32)
    with pytest.raises(ValueError, match="does not fit"):
        paged_attention(batch.q, batch.cache, plan, scale=1.0)
