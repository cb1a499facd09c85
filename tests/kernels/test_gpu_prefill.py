"""The GPU's prefill attention on the stand-in: numbers, memory, and bits that no batch and no chunk may change."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kernels.paged_prefill.kernel
from kernels import gpu
from kernels.paged_prefill import PrefillTables, paged_prefill, plan_prefill, tile_rows
from kernels.paged_prefill.reference import paged_prefill as reference
from tests.kernels.accuracy import assert_exact, generator, with_gaps
from tests.kernels.hopper import Hopper, on_hopper
from tests.kernels.memory_watch import MemoryFault
from tests.kernels.paged import Cache, attend, make_cache
from tests.kernels.planting import planted

QUERY_LENS, LENS = [1, 33, 70, 19], [70, 33, 200, 130]


def _tables(cache: Cache, query_lens: list[int], group: int, window: int | None = None) -> PrefillTables:
    items = torch.from_numpy(
        plan_prefill(query_lens, cache.lens, group=group, rows=tile_rows(cache.tensor.element_size()))
    )
    return PrefillTables(query_lens, cache.lens, cache.blocks, items, window)


def _queries(num_tokens: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return with_gaps(torch.randn(num_tokens, num_heads, head_dim, generator=generator(9)).to(dtype), gap=16)


@pytest.mark.parametrize(
    ("dtype", "kv_heads", "group", "head_dim", "window"),
    [
        (torch.bfloat16, 2, 4, 128, None),
        (torch.bfloat16, 1, 7, 64, 50),
        (torch.float16, 1, 8, 128, 20),
        (torch.float16, 2, 1, 64, None),
        (torch.float32, 1, 2, 64, 90),
        (torch.float32, 1, 1, 128, None),
    ],
)
def test_prefill_is_right(
    hopper: Hopper, dtype: torch.dtype, kv_heads: int, group: int, head_dim: int, window: int | None
) -> None:
    begins = [length - new for new, length in zip(QUERY_LENS, LENS, strict=True)]
    visible = [0 if window is None else max(begin + 1 - window, 0) for begin in begins]
    cache = make_cache(LENS, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, visible_from=visible)
    q = _queries(sum(QUERY_LENS), kv_heads * group, head_dim, dtype)
    scale = head_dim**-0.5
    out = paged_prefill(q, cache.tensor, _tables(cache, QUERY_LENS, group, window), scale=scale)
    chunks = q.split(QUERY_LENS)
    truth = [attend(chunk, cache, i, begins[i], window=window) for i, chunk in enumerate(chunks)]
    theirs = reference(q, cache.tensor, cache.blocks, QUERY_LENS, LENS, scale=scale, window=window)
    assert_exact(out, torch.cat(truth), theirs)
    (cubin,) = hopper.launched
    assert cubin.num_wide_loads
    assert dtype == torch.float32 or cubin.count("HGMMA"), cubin


def test_with_a_ptxas_that_miscompiles_it_prefill_runs_in_one_stage() -> None:
    """Without copies that overlap the products; whether it is right there, the self-check says at start."""
    cache = make_cache([70], kv_heads=1, head_dim=64, dtype=torch.bfloat16)
    q = _queries(70, 1, 64, torch.bfloat16)
    copies = []
    for is_careful in (False, True):
        with on_hopper() as hopper, gpu.played_by("cpu", multiprocessors=5, is_careful=is_careful):
            out = paged_prefill(q, cache.tensor, _tables(cache, [70], 1), scale=0.125)
            copies.append(hopper.launched[-1].count("LDGSTS"))
        assert_exact(out, attend(q, cache, 0, 0), reference(
            q, cache.tensor, cache.blocks, [70], [70], scale=0.125, window=None))  # fmt: skip
    assert copies[0] > 0 and copies[1] == 0


@pytest.mark.parametrize("window", [None, 50])
def test_a_token_has_the_same_bits_in_any_batch_and_any_chunk(hopper: Hopper, window: int | None) -> None:
    q = _queries(200, 7, 64, torch.bfloat16)
    whole = make_cache([200], kv_heads=1, head_dim=64, dtype=torch.bfloat16)
    expected = paged_prefill(q, whole.tensor, _tables(whole, [200], 7, window), scale=0.125)
    for begin, others in ((0, [40]), (61, []), (130, [200, 17]), (199, [])):
        lens = [*others, 200]
        cache = make_cache(lens, kv_heads=1, head_dim=64, dtype=torch.bfloat16, seed=begin)
        batch = torch.cat((*(q[:length] for length in others), q[begin:]))
        out = paged_prefill(batch, cache.tensor, _tables(cache, [*others, 200 - begin], 7, window), scale=0.125)
        assert torch.equal(out[begin - 200 :], expected[begin:])


def test_a_cache_beyond_32_bits_is_found(hopper: Hopper) -> None:
    """Never written but for two blocks, so that it takes no memory."""
    num_blocks = 2**31 // (16 * 16 * 128) + 100
    far = torch.empty(num_blocks, 16, 16, 128, dtype=torch.bfloat16)
    near = make_cache([32], kv_heads=8, head_dim=128, dtype=torch.bfloat16)
    ids = torch.tensor([num_blocks - 1, num_blocks - 3])
    far[ids] = near.tensor[near.blocks[0, :2].long()]
    q = _queries(20, 8, 128, torch.bfloat16)
    expected = paged_prefill(q, near.tensor, _tables(near, [20], 1), scale=0.1)
    far_cache = Cache(far, ids[None].int(), (32,))
    assert torch.equal(paged_prefill(q, far, _tables(far_cache, [20], 1), scale=0.1), expected)


def test_the_shapes_of_real_models_compile_well() -> None:
    with on_hopper(interprets=False) as hopper:
        for num_heads, kv_heads, window in ((32, 8, None), (28, 4, None), (32, 8, 4096)):
            cache = make_cache([40], kv_heads=kv_heads, head_dim=128, dtype=torch.bfloat16)
            q = _queries(40, num_heads, 128, torch.bfloat16)
            paged_prefill(q, cache.tensor, _tables(cache, [40], num_heads // kv_heads, window), scale=0.1)
        assert all(c.count("HGMMA") and c.num_warps * c.blocks_per_multiprocessor >= 8 for c in hopper.launched), (
            hopper.launched
        )


def test_it_fits_gpus_with_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "has_large_shared_memory", lambda: False)
    with on_hopper(interprets=False) as hopper:
        for window in (None, 4096):
            cache = make_cache([40], kv_heads=8, head_dim=128, dtype=torch.bfloat16)
            q = _queries(40, 32, 128, torch.bfloat16)
            paged_prefill(q, cache.tensor, _tables(cache, [40], 4, window), scale=0.1)
        assert all(cubin.shared <= 99 * 1024 for cubin in hopper.launched)


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("(row < tokens * GROUP) & ", "", "both write"),
        ("& (token < num_new)", "", "outside|both write"),
        ("token[None, :] <= at[:, None]", "token[None, :] < at[:, None]", None),
        ("(begin + first + 1) // TILE", "(begin + first + 64) // TILE", "outside"),
        ("block * BLOCK + token % BLOCK", "block * BLOCK * 2 + token % BLOCK", "outside"),
        ("tl.minimum(first + tokens, num_new)", "tl.minimum(first + tokens - 1, num_new)", None),
    ],
)
def test_faults_planted_into_prefill_are_found(
    hopper: Hopper, tmp_path: Path, right: str, wrong: str, found: str | None
) -> None:
    """None: by the numbers."""
    faulty = planted(kernels.paged_prefill.kernel, tmp_path, right, wrong)
    cache = make_cache([30, 150], kv_heads=1, head_dim=64, dtype=torch.float16)
    q, tables = _queries(80, 7, 64, torch.float16), _tables(cache, [30, 50], 7)
    if found:
        with pytest.raises(MemoryFault, match=found):
            faulty.paged_prefill(q, cache.tensor, tables, scale=0.1)
    else:
        out = faulty.paged_prefill(q, cache.tensor, tables, scale=0.1)
        assert not torch.allclose(out, paged_prefill(q, cache.tensor, tables, scale=0.1), rtol=1e-2, atol=1e-2)


def test_what_does_not_fit_is_refused(hopper: Hopper) -> None:
    cache = make_cache([30], kv_heads=2, head_dim=32, dtype=torch.float16)
    with pytest.raises(ValueError, match="no kernel"):
        paged_prefill(torch.zeros(5, 4, 32).half(), cache.tensor, _tables(cache, [5], 2), scale=1.0)
    with pytest.raises(ValueError, match="does not fit"):
        paged_prefill(torch.zeros(6, 4, 32).half(), cache.tensor, _tables(cache, [5], 2), scale=1.0)


@settings(deadline=None)
@given(
    chunks=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3000)), max_size=8), group=st.sampled_from([1, 4, 7])
)
def test_tiles_cover_every_new_token_once(chunks: list[tuple[int, int]], group: int) -> None:
    items = plan_prefill([new for new, _ in chunks], [new + old for new, old in chunks], group=group, rows=64)
    rows = []
    for sequence, row, num_new, first, begin in items.tolist():
        assert (num_new, begin) == chunks[sequence]
        rows += range(row + first, row + min(first + 64 // group, num_new))
    assert sorted(rows) == list(range(sum(new for new, _ in chunks)))
