"""The GPU's rms_norm, silu_mul and rope_and_store on the stand-in, against float64."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import kernels.rms_norm.kernel
import kernels.rms_norm.reference
import kernels.rope_and_store.kernel
import kernels.rope_and_store.reference
import kernels.silu_mul.kernel
import kernels.silu_mul.reference
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import signed_sin
from kernels.rope_and_store import rope_and_store
from kernels.silu_mul import silu_mul
from tests.kernels.accuracy import DTYPES, assert_exact, generator, with_gaps
from tests.kernels.hopper import Hopper
from tests.kernels.memory_watch import MemoryFault
from tests.kernels.planting import planted

WIDTHS = [
    (torch.bfloat16, 896),
    (torch.bfloat16, 4096),
    (torch.bfloat16, 8192),
    (torch.float16, 3584),
    (torch.float32, 7),
]


def _truth_of_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()


@pytest.mark.parametrize(("dtype", "size"), WIDTHS)
def test_rms_norm_is_right(hopper: Hopper, dtype: torch.dtype, size: int) -> None:
    x = with_gaps(torch.randn(3, size, generator=generator(size)).to(dtype), gap=16)
    weight = torch.rand(size, generator=generator(1)).to(dtype)
    before = x.clone()
    truth = _truth_of_norm(x, weight)
    assert_exact(rms_norm(x, weight, eps=1e-5), truth, kernels.rms_norm.reference.rms_norm(x, weight, eps=1e-5))
    assert torch.equal(x, before)
    cubin = hopper.launched[-1]
    assert size < 256 or (cubin.num_wide_loads and cubin.bytes_in_flight >= 40 * 1024), cubin


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_is_stored_and_normed_as_torch_rounds_it(hopper: Hopper, dtype: torch.dtype) -> None:
    x, delta = (with_gaps(torch.randn(5, 896, generator=generator(i)).to(dtype), gap=16) for i in range(2))
    weight = torch.rand(896, generator=generator(2)).to(dtype)
    total = x + delta
    normed = add_rms_norm(x, delta, weight, eps=1e-5)
    assert torch.equal(x, total)
    reference = kernels.rms_norm.reference.rms_norm(total, weight, eps=1e-5)
    assert_exact(normed, _truth_of_norm(total, weight), reference)


def test_heads_are_normed_one_by_one(hopper: Hopper) -> None:
    heads = with_gaps(torch.randn(3, 6, 64, generator=generator(0)).bfloat16())[:, 1:5]
    weight = torch.rand(64, generator=generator(1)).bfloat16()
    reference = kernels.rms_norm.reference.rms_norm(heads, weight, eps=1e-5)
    assert_exact(rms_norm(heads, weight, eps=1e-5), _truth_of_norm(heads, weight), reference)


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 4864), (torch.float16, 1025), (torch.float32, 24)])
def test_silu_mul_is_right(hopper: Hopper, dtype: torch.dtype, size: int) -> None:
    gate_up = with_gaps(5 * torch.randn(3, 2 * size, generator=generator(size)).to(dtype), gap=16)
    gate, up = gate_up.double().chunk(2, dim=1)
    reference = kernels.silu_mul.reference.silu_mul(gate_up.clone())
    assert_exact(silu_mul(gate_up), torch.nn.functional.silu(gate) * up, reference)
    assert size % 16 or hopper.launched[-1].num_wide_loads


def test_silu_of_very_negative_numbers_is_zero(hopper: Hopper) -> None:
    gate_up = torch.tensor([[-200.0, -1e30, 200.0, 0.0, 1.0, 1.0, 2.0, 3.0]])
    assert silu_mul(gate_up).tolist() == [[0.0, 0.0, 400.0, 0.0]]


def _tables(head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles = torch.arange(40)[:, None] * torch.logspace(0, -4, head_dim // 2)
    return torch.cat((angles.cos(),) * 2, 1).to(dtype)[:, None], signed_sin(angles.sin()).to(dtype)[:, None]


@pytest.mark.parametrize(
    ("dtype", "num_queries", "num_kv", "head_dim"),
    [
        (torch.bfloat16, 28, 4, 128),
        (torch.bfloat16, 4, 1, 64),
        (torch.float16, 8, 1, 64),
        (torch.float32, 3, 3, 128),
        (torch.float32, 4, 2, 16),
    ],
)
def test_queries_rotate_in_place_and_keys_and_values_go_to_their_slots(
    hopper: Hopper, dtype: torch.dtype, num_queries: int, num_kv: int, head_dim: int
) -> None:
    num_heads = num_queries + 2 * num_kv
    heads = with_gaps(torch.randn(5, num_heads, head_dim, generator=generator(num_heads)).to(dtype), gap=16)
    cos, sin = _tables(head_dim, dtype)
    positions = torch.tensor([3, 39, 0, 17, 18], dtype=torch.int32)
    slots = torch.tensor([16, 63, 0, 33, 1], dtype=torch.int32)
    cache = torch.full((4, 16, 2 * num_kv, head_dim), float("nan"), dtype=dtype)
    true_heads, true_cache = heads.double(), cache.double()
    their_heads, their_cache = heads.clone(), cache.clone()
    rotate = kernels.rope_and_store.reference.rope_and_store
    rotate(true_heads, true_cache, cos.double(), sin.double(), positions, slots)
    rotate(their_heads, their_cache, cos, sin, positions, slots)
    rope_and_store(heads, cache, cos, sin, positions, slots)
    assert_exact(heads[:, :num_queries], true_heads[:, :num_queries], their_heads[:, :num_queries])
    stored = [each.flatten(0, 1)[slots.long()] for each in (cache, true_cache, their_cache)]
    assert_exact(*stored)
    assert torch.equal(stored[0][:, num_kv:], stored[2][:, num_kv:])
    assert cache.isnan().sum() == (64 - 5) * 2 * num_kv * head_dim
    assert head_dim < 64 or hopper.launched[-1].num_wide_loads


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("mask = at < SIZE", "mask = at < SIZE + 40", "outside"),
        ("y + row * SIZE", "y + row // 2 * SIZE", "both write"),
        ("delta + row * stride_delta", "x + (row + 1) % 2 * stride_outer", "reads what program"),
    ],
)
def test_faults_planted_into_rms_norm_are_found(
    hopper: Hopper, tmp_path: Path, right: str, wrong: str, found: str
) -> None:
    faulty = planted(kernels.rms_norm.kernel, tmp_path, right, wrong)
    x, delta, weight = torch.randn(2, 96), torch.randn(2, 96), torch.rand(96)
    with pytest.raises(MemoryFault, match=found):
        faulty.rms_norm(x, weight, eps=1e-5, delta=delta)


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("mask = at < size", "mask = at <= size", "outside|both write"),
        ("tl.program_id(1) * BLOCK", "tl.program_id(1) * (BLOCK - 1)", "both write"),
    ],
)
def test_faults_planted_into_silu_mul_are_found(
    hopper: Hopper, tmp_path: Path, right: str, wrong: str, found: str
) -> None:
    with pytest.raises(MemoryFault, match=found):
        planted(kernels.silu_mul.kernel, tmp_path, right, wrong).silu_mul(torch.randn(1, 2200))


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("exists = head < num_heads", "exists = head <= num_heads", "outside|both write"),
        ("tl.load(slots + token)", "tl.load(slots)", "both write"),
        ("source = heads + token * stride", "source = heads + (token + 1) % 2 * stride", None),
        ("tl.load(positions + token).to(tl.int64)", "(tl.load(positions + token) + 1).to(tl.int64)", None),
    ],
)
def test_faults_planted_into_rope_and_store_are_found(
    hopper: Hopper, tmp_path: Path, right: str, wrong: str, found: str | None
) -> None:
    """None: by the numbers."""
    faulty = planted(kernels.rope_and_store.kernel, tmp_path, right, wrong)
    heads, cache = torch.randn(2, 7, 16), torch.zeros(1, 16, 4, 16)
    index = torch.tensor([2, 5], dtype=torch.int32)
    their_heads, their_cache = heads.clone(), cache.clone()
    kernels.rope_and_store.reference.rope_and_store(their_heads, their_cache, *_tables(16, torch.float32), index, index)
    if found is not None:
        with pytest.raises(MemoryFault, match=found):
            faulty.rope_and_store(heads, cache, *_tables(16, torch.float32), index, index)
    else:
        faulty.rope_and_store(heads, cache, *_tables(16, torch.float32), index, index)
        assert not torch.allclose(cache, their_cache)


def test_layouts_that_no_kernel_takes_are_refused(hopper: Hopper) -> None:
    with pytest.raises(ValueError, match="no kernel"):
        rms_norm(torch.ones(4, 8).T, torch.ones(4), eps=1e-5)
    with pytest.raises(ValueError, match="no kernel"):
        silu_mul(torch.ones(8, 4).T)
    with pytest.raises(ValueError, match="do not fit"):
        index = torch.zeros(2, dtype=torch.int32)
        rope_and_store(torch.ones(2, 4, 16), torch.ones(1, 16, 4, 16), *_tables(16, torch.float32), index, index)
