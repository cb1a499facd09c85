"""The GPU's decode attention on the stand-in: numbers, memory, bits that no batch may change, and its plan."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kernels.paged_decode.kernel
from kernels.paged_decode import DecodeTables, num_programs, paged_decode, plan_decode
from kernels.paged_decode.plan import max_parts, part_size
from kernels.paged_decode.reference import paged_decode as reference
from tests.kernels.accuracy import assert_exact, generator, with_gaps
from tests.kernels.hopper import Hopper, on_hopper
from tests.kernels.memory_watch import MemoryFault
from tests.kernels.paged import Cache, attend, make_cache
from tests.kernels.planting import planted

LENS = [1, 300, 64, 17, 530]


def _tables(cache: Cache, kv_heads: int, *, window: int | None = None, padding: int = 0) -> DecodeTables:
    """padding: rows without tokens at the end."""
    lens = [*cache.lens, *[0] * padding]
    plan = plan_decode(lens, num_programs=num_programs(kv_heads), window=window)
    blocks = torch.cat((cache.blocks, torch.zeros(padding, cache.blocks.shape[1], dtype=torch.int32)))
    return DecodeTables(
        context_lens=torch.tensor(lens, dtype=torch.int32),
        blocks=blocks,
        items=torch.from_numpy(plan.items),
        programs=torch.from_numpy(plan.programs),
        parts=torch.from_numpy(plan.parts),
        most_parts=len(plan.items) + 2,
        window=window,
    )


def _queries(num_seqs: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return with_gaps(torch.randn(num_seqs, num_heads, head_dim, generator=generator(9)).to(dtype), gap=16)


@pytest.mark.parametrize(
    ("dtype", "kv_heads", "group", "head_dim"),
    [
        (torch.bfloat16, 2, 4, 128),
        (torch.bfloat16, 2, 7, 64),
        (torch.float16, 2, 8, 128),
        (torch.float32, 1, 1, 64),
        (torch.float32, 1, 7, 128),
    ],
)
@pytest.mark.parametrize("window", [None, 270])
def test_decode_is_right(
    hopper: Hopper, dtype: torch.dtype, kv_heads: int, group: int, head_dim: int, window: int | None
) -> None:
    visible_from = None if window is None else [max(length - window, 0) for length in LENS]
    cache = make_cache(LENS, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, visible_from=visible_from)
    q = _queries(len(LENS), kv_heads * group, head_dim, dtype)
    tables = _tables(cache, kv_heads, window=window, padding=2)
    q = torch.cat((q, q[:2]))
    out = paged_decode(q, cache.tensor, tables, scale=head_dim**-0.5)
    scale = head_dim**-0.5
    theirs = reference(q, cache.tensor, tables.blocks, tables.context_lens, scale=scale, window=window)
    truth = torch.cat([attend(q[i : i + 1], cache, i, n - 1, window=window) for i, n in enumerate(LENS)])
    assert_exact(out[: len(LENS)], truth, theirs[: len(LENS)])
    assert torch.equal(out[len(LENS) :], torch.zeros_like(out[:2]))
    decode = hopper.launched[0]
    assert decode.num_wide_loads and decode.bytes_in_flight >= 40 * 1024, decode
    assert dtype == torch.float32 or decode.count("HMMA", "HGMMA")


def test_a_sequence_has_the_same_bits_in_any_batch(hopper: Hopper) -> None:
    q = _queries(1, 8, 64, torch.bfloat16)
    outs = []
    for lens in ([530], [5, 530, 1024, 64], [530, 530, 1, 16]):
        cache = make_cache(lens, kv_heads=2, head_dim=64, dtype=torch.bfloat16, seed=len(lens))
        for padding in (0, 3):
            queries = q.expand(len(lens) + padding, -1, -1)
            out = paged_decode(queries, cache.tensor, _tables(cache, 2, padding=padding), scale=0.125)
            outs.append(out[lens.index(530)])
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_a_cache_beyond_32_bits_is_found(hopper: Hopper) -> None:
    """Never written but for two blocks, so that it takes no memory."""
    kv_heads, head_dim = 8, 128
    num_blocks = 2**31 // (16 * 2 * kv_heads * head_dim) + 100
    far = torch.empty(num_blocks, 16, 2 * kv_heads, head_dim, dtype=torch.bfloat16)
    near = make_cache([32], kv_heads=kv_heads, head_dim=head_dim, dtype=torch.bfloat16)
    ids = torch.tensor([num_blocks - 1, num_blocks - 3])
    far[ids] = near.tensor[near.blocks[0, :2].long()]
    q = _queries(1, 32, head_dim, torch.bfloat16)
    expected = paged_decode(q, near.tensor, _tables(near, kv_heads), scale=0.1)
    far_cache = Cache(far, ids[None].int(), (32,))
    assert torch.equal(paged_decode(q, far, _tables(far_cache, kv_heads), scale=0.1), expected)


def test_the_shapes_of_real_models_compile_well() -> None:
    with on_hopper(interprets=False) as hopper:
        for num_heads, kv_heads, head_dim in ((32, 8, 128), (28, 4, 128), (32, 32, 128), (14, 2, 64)):
            cache = make_cache([40], kv_heads=kv_heads, head_dim=head_dim, dtype=torch.bfloat16)
            q = _queries(1, num_heads, head_dim, torch.bfloat16)
            paged_decode(q, cache.tensor, _tables(cache, kv_heads), scale=0.1)
        # Triton 3.6 takes twice the registers of 3.9, and then 3 blocks fit instead of 5.
        assert all(c.bytes_in_flight >= 90 * 1024 and c.blocks_per_multiprocessor >= 3 for c in hopper.launched[::2])


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("seen = token < end", "seen = token <= end", None),
        ("mask=seen, other=0).to(tl.int64)", "mask=seen, other=0).to(tl.int64) * 3", "outside"),
        ("(place * KV_HEADS + head)", "(place + head)", "both write"),
        ("partial + at[:, None] * DIM", "partial + 1 + at[:, None] * DIM", None),
        ("is_row = row < GROUP", "is_row = row <= GROUP", "both write|outside"),
        ("range(first, end):", "range(first + 1, end):", None),
        ("tl.store(y + (sequence", "tl.store(y + (0 * sequence", "both write"),
    ],
)
def test_faults_planted_into_decode_are_found(
    hopper: Hopper, tmp_path: Path, right: str, wrong: str, found: str | None
) -> None:
    """None: by the numbers."""
    faulty = planted(kernels.paged_decode.kernel, tmp_path, right, wrong)
    cache = make_cache([30, 300], kv_heads=2, head_dim=64, dtype=torch.float16)
    q = _queries(2, 4, 64, torch.float16)
    if found:
        with pytest.raises(MemoryFault, match=found):
            faulty.paged_decode(q, cache.tensor, _tables(cache, 2), scale=0.1)
    else:
        expected = paged_decode(q, cache.tensor, _tables(cache, 2), scale=0.1)
        out = faulty.paged_decode(q, cache.tensor, _tables(cache, 2), scale=0.1)
        assert not torch.allclose(out, expected, rtol=1e-2, atol=1e-2)


def test_what_does_not_fit_is_refused(hopper: Hopper) -> None:
    cache = make_cache([30], kv_heads=2, head_dim=32, dtype=torch.float16)
    with pytest.raises(ValueError, match="no kernel"):
        paged_decode(torch.zeros(1, 4, 32).half(), cache.tensor, _tables(cache, 2), scale=1.0)
    with pytest.raises(ValueError, match="does not fit"):
        paged_decode(torch.zeros(2, 4, 32).half(), cache.tensor, _tables(cache, 2), scale=1.0)


@settings(deadline=None)
@given(
    lens=st.lists(st.integers(0, 70_000), min_size=1, max_size=40),
    num_programs=st.integers(1, 200),
    window=st.none() | st.integers(1, 5000),
)
def test_a_plan_reads_every_visible_token_once_and_spreads_the_work(
    lens: list[int], num_programs: int, window: int | None
) -> None:
    plan = plan_decode(lens, num_programs=num_programs, window=window)
    read: dict[int, list[tuple[int, int]]] = {i: [] for i in range(len(lens))}
    places: dict[int, list[int]] = {i: [] for i in range(len(lens))}
    for sequence, first, end, place in sorted(plan.items.tolist(), key=lambda item: item[3]):
        assert 0 < end - first <= part_size(lens[sequence])
        read[sequence].append((first, end))
        places[sequence].append(place)
    for i, length in enumerate(lens):
        expected = range(max(0, length - (window or length)), length)
        assert [token for part in read[i] for token in range(*part)] == list(expected)
        assert places[i] == list(range(plan.parts[i], plan.parts[i + 1]))
        assert len(read[i]) <= max_parts(max(length, 1))
    assert plan.programs[0] == 0 and plan.programs[-1] == len(plan.items) and len(plan.programs) == num_programs + 1
    counts = plan.programs[1:] - plan.programs[:-1]
    assert counts.min() >= 0 and counts.max() - counts.min() <= 1
