"""The stand-in finds faults that were planted, and only those."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from kernels.gpu import LAUNCH
from tests.kernels.hopper import Hopper, on_hopper
from tests.kernels.memory_watch import MemoryFault


@triton.jit
def _copy(x, y, n, readable, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < readable, other=0.0), mask=at < n)


@triton.jit
def _shift(x, FROM: tl.constexpr, TO: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * FROM + block)
    tl.store(x + 1024 + tl.program_id(0) * TO + block, value)


@triton.jit
def _leave_out(x, y, n, written, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n, other=0.0), mask=at < written)


@triton.jit
def _chase(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at + BLOCK))


@triton.jit
def _product(x, y, z, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    product = tl.dot(tl.load(x + at), tl.load(y + at), input_precision=PRECISION)
    tl.store(z + at, product.to(z.dtype.element_ty))


@triton.jit
def _long_product(x, y, z, K, SIZE: tl.constexpr, STAGES: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    sums = tl.zeros([SIZE, SIZE], tl.float32)
    for k in tl.range(0, K, SIZE, num_stages=STAGES):
        sums = tl.dot(tl.load(x + rows * K + k + columns), tl.load(y + (k + rows) * SIZE + columns), sums)
    tl.store(z + rows * SIZE + columns, sums)


@triton.jit
def _widest_of_rows(x, y, starts, COLUMNS: tl.constexpr):
    """A loop with loaded bounds, and functions that are jitted themselves."""
    row = tl.program_id(0)
    most = tl.full([COLUMNS], float("-inf"), tl.float32)
    for i in range(tl.load(starts + row), tl.load(starts + row + 1)):
        most = tl.maximum(most, tl.load(x + i * COLUMNS + tl.arange(0, COLUMNS)).to(tl.float32))
    tl.store(y + row, tl.sum(most, 0).to(y.dtype.element_ty))


@triton.jit
def _sum_of_halves(x, y, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), value + value)


@triton.jit
def _count(x, BLOCK: tl.constexpr):
    tl.atomic_add(x + tl.arange(0, BLOCK), 1)


def test_what_a_launch_leaves_unwritten_is_nan(hopper: Hopper) -> None:
    """However the memory was used before."""
    x = torch.ones(64)
    for _ in range(3):
        y = torch.empty(64)
        _leave_out[(1,)](x, y, 64, 60, 64, **LAUNCH)
        assert y[:60].eq(1).all() and y[60:].isnan().all()
        y.fill_(1)


def test_a_sound_kernel_passes_and_is_read_back(hopper: Hopper) -> None:
    x, y = torch.randn(100), torch.full((100,), float("nan"))
    _copy[(2,)](x, y, 100, 100, 64, **LAUNCH)
    assert torch.equal(x, y)
    (cubin,) = hopper.launched
    assert cubin.name == "_copy" and 0 < cubin.registers <= 255 and cubin.count("LDG", "STG") >= 2
    assert cubin.blocks_per_multiprocessor == 16 and cubin.bytes_in_flight == 0


def test_a_read_past_the_end_is_found(hopper: Hopper) -> None:
    with pytest.raises(MemoryFault, match="reads outside"):
        _copy[(2,)](torch.randn(100), torch.empty(100), 100, 101, 64, **LAUNCH)


def test_a_write_past_the_end_is_found(hopper: Hopper) -> None:
    with pytest.raises(MemoryFault, match="writes outside"):
        _copy[(2,)](torch.randn(128), torch.empty(100), 101, 100, 64, **LAUNCH)


def test_two_writers_of_one_address_are_found(hopper: Hopper) -> None:
    with pytest.raises(MemoryFault, match="both write"):
        _shift[(2,)](torch.randn(2048), FROM=64, TO=63, BLOCK=64, **LAUNCH)


def test_a_read_of_what_another_program_writes_is_found(hopper: Hopper) -> None:
    with pytest.raises(MemoryFault, match=r"program \(0, 0, 0\) reads what program \(1, 0, 0\) writes"):
        _chase[(2,)](torch.randn(192), 64, **LAUNCH)


def test_too_much_shared_memory_is_refused(hopper: Hopper) -> None:
    x = torch.randn(64, 1024).half()
    with pytest.raises(OutOfResources, match="shared memory"):
        _long_product[(1,)](x, x.T.contiguous(), torch.empty(64, 64), 1024, 64, STAGES=16, **LAUNCH)


def test_tensor_cores_for_float32_are_found_before_and_after_compiling() -> None:
    x = torch.randn(16, 16)
    with pytest.raises(ValueError, match="ieee"), on_hopper() as hopper:
        _product[(1,)](x, x, torch.empty_like(x), 16, "tf32", **LAUNCH)
    assert any("TF32" in fault for fault in hopper.launched[-1].faults())


def test_atomics_are_found() -> None:
    with pytest.raises(AssertionError, match="atomics"), on_hopper(interprets=False):
        _count[(2,)](torch.zeros(64, dtype=torch.int32), 64, **LAUNCH)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_products_are_those_of_the_numbers_rounded_once(hopper: Hopper, dtype: torch.dtype) -> None:
    x, y = (torch.randn(32, 32).to(dtype) for _ in range(2))
    z = torch.full_like(x, float("nan"))
    _product[(1,)](x, y, z, 32, "ieee", **LAUNCH)
    truth = x.double() @ y.double()
    assert (z.double() - truth).norm() <= 1.5 * (truth.to(dtype).double() - truth).norm()


def test_bfloat16_arithmetic_is_refused_rather_than_wrong(hopper: Hopper) -> None:
    x = torch.randn(64).bfloat16()
    with pytest.raises(NotImplementedError, match="bfloat16"):
        _sum_of_halves[(1,)](x, torch.empty_like(x), 64, **LAUNCH)


def test_loops_with_loaded_bounds_and_jitted_functions_are_interpreted(hopper: Hopper) -> None:
    x, y = torch.randn(6, 32).bfloat16(), torch.full((3,), float("nan"), dtype=torch.bfloat16)
    _widest_of_rows[(3,)](x, y, torch.tensor([0, 1, 3, 6], dtype=torch.int32), 32, **LAUNCH)
    truth = torch.stack([x[:1].amax(0), x[1:3].amax(0), x[3:].amax(0)]).float().sum(1).bfloat16()
    assert (y.float() - truth.float()).abs().max() <= 1e-2 * truth.float().abs().max()
