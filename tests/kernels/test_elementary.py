"""rms_norm, rope, store_kv and linear against their definitions in fp64."""

import pytest
import torch

from kernels.kv_store import store_kv
from kernels.linear import linear, pack
from kernels.rms_norm import rms_norm
from kernels.rope import rope, signed_sin

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 320])
def test_rms_norm_is_right_for_strided_rows_of_every_dtype(dtype: torch.dtype, size: int) -> None:
    x = torch.randn(5, 2 * size).to(dtype)[:, :size]
    weight = torch.randn(size).to(dtype)
    truth = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    got = rms_norm(x, weight, eps=1e-5)
    assert got.dtype == dtype
    # Two roundings: of the normed row and of its product with the weight.
    error = (got.double() - truth).abs() / truth.abs().clamp(min=1e-3)
    assert error.max() <= 3 * torch.finfo(dtype).eps


def test_rms_norm_refuses_a_weight_of_another_size() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        rms_norm(torch.ones(2, 8), torch.ones(4), eps=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_rotates_each_pair_by_its_angle_in_place(dtype: torch.dtype) -> None:
    wide = torch.randn(3, 6, 8).to(dtype)
    before = wide.double()
    angles = torch.randn(3, 1, 4, dtype=torch.float64)
    cos, sin = (torch.cat((t, t), -1) for t in (angles.cos(), angles.sin()))
    rope(wide[:, :4], cos.to(dtype), signed_sin(angles.sin()).to(dtype))
    first, second = before[:, :4, :4], before[:, :4, 4:]
    half_cos, half_sin = cos[..., :4], sin[..., :4]
    truth = torch.cat((first * half_cos - second * half_sin, second * half_cos + first * half_sin), -1)
    assert (wide[:, :4].double() - truth).abs().max() <= 8 * torch.finfo(dtype).eps
    assert torch.equal(wide[:, 4:].double(), before[:, 4:])


def test_rope_refuses_tables_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        rope(torch.ones(2, 3, 8), torch.ones(2, 1, 4), torch.ones(2, 1, 4))


def test_store_kv_writes_its_slots_and_no_others() -> None:
    cache = torch.full((4, 16, 6, 8), float("nan"))
    kv = torch.randn(3, 8, 8)[:, 2:]
    store_kv(kv, cache, torch.tensor([17, 63, 0]))
    flat = cache.view(64, 6, 8)
    assert torch.equal(flat[[17, 63, 0]], kv)
    assert flat.isnan().all(dim=(1, 2)).sum() == 61


def test_store_kv_refuses_another_shape() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        store_kv(torch.ones(2, 4, 8), torch.ones(4, 16, 6, 8), torch.tensor([0, 1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "in_size", "out_size"), [(1, 64, 96), (3, 7, 5), (33, 320, 41), (1, 2048, 64)])
def test_linear_equals_the_plain_product(dtype: torch.dtype, rows: int, in_size: int, out_size: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, in_size, generator=generator).to(dtype)
    weight = torch.randn(out_size, in_size, generator=generator).to(dtype)
    bias = torch.randn(out_size, generator=generator).to(dtype)
    truth = x.double() @ weight.double().T + bias.double()
    theirs = (torch.nn.functional.linear(x, weight, bias).double() - truth).square().mean().sqrt()
    ours = (linear(x, pack(weight), bias).double() - truth).square().mean().sqrt()
    assert ours <= max(2 * theirs, 8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_sizes", [(64, 128, 33), (64, 33, 7), (1024, 2048)])
def test_parts_are_packed_one_below_the_other(dtype: torch.dtype, out_sizes: tuple[int, ...]) -> None:
    x = torch.randn(5, 1024).to(dtype)
    parts = [torch.randn(out_size, 1024).to(dtype) for out_size in out_sizes]
    weight = pack(*parts)
    assert (weight.out_size, weight.in_size) == (sum(out_sizes), 1024)
    assert torch.equal(linear(x, weight), linear(x, pack(torch.cat(parts))))


@pytest.mark.parametrize(("in_size", "out_size"), [(256, 512), (704, 256), (2048, 2048)])
def test_a_packed_product_gives_a_row_the_same_bits_among_any_number(in_size: int, out_size: int) -> None:
    weight = pack(torch.randn(out_size, in_size))
    x = torch.randn(70, in_size)
    whole = linear(x, weight)
    for rows in (1, 2, 3, 5, 8, 9, 31, 32, 33, 64):
        assert torch.equal(linear(x[:rows], weight), whole[:rows])


def test_parts_of_another_size_or_dtype_are_refused() -> None:
    for other in (torch.ones(32, 32), torch.ones(32, 64, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="do not fit"):
            pack(torch.ones(32, 64), other)


def test_linear_refuses_another_size_or_dtype() -> None:
    weight = pack(torch.ones(4, 8))
    for x in (torch.ones(2, 7), torch.ones(2, 8, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="does not fit"):
            linear(x, weight)
