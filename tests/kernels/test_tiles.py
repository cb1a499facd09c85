"""bfloat16 products by AMX's tiles: on a processor that has them, and with emulated ones on any with AVX2. The brackets
of each test say which of the two it ran.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import kernels.linear
from kernels.linear import linear, pack
from kernels.native import library, set_num_threads
from kernels.native.isa import EMULATED, ISA_VARIABLE, WrongInstructions, choose, flags, request_tiles
from tests.kernels.accuracy import assert_exact
from tests.support.architectures import ARCHITECTURES
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.compute import TinyRunner
from tests.support.recording import random_requests, recording

SHAPES = [
    # rows, in, out: tiles are 16 rows by 32 numbers by 16 outputs; a slice is 2,048 numbers, a block 96 or 192 rows.
    *((1, 2, 1), (4, 30, 5), (5, 32, 64), (15, 34, 65), (16, 64, 16), (17, 96, 31), (31, 62, 130), (32, 128, 128)),
    *((33, 64, 40), (48, 66, 96), (70, 700, 200), (100, 130, 70), (230, 96, 33)),
    *((6, 2048, 64), (40, 2080, 70), (20, 2050, 30), (33, 6144, 64), (17, 4200, 40)),
]
SOURCE = """
#include "kernels/linear/native.h"
void product(const uint16_t* x, const uint32_t* packed, const uint16_t* bias, uint16_t* y, int64_t rows, int64_t size) {
    tiergate::linear<tiergate::BFloat16>(x, packed, bias, y, rows, size, size, false, 2);
}
"""


def builds() -> list[str]:
    """Those that run here: "amx" only where the processor has it and the system permits it."""
    found = []
    for name in ("amx", EMULATED):
        with contextlib.suppress(WrongInstructions):
            found += choose(name, torch.cpu.get_capabilities(), request_tiles)
    return found


@pytest.fixture(scope="module", params=builds(), autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The library, built for these instructions."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(ISA_VARIABLE, request.param)
        library.cache_clear()
        try:
            if library() is None:
                pytest.skip("no compiler")
            yield request.param
        finally:
            library.cache_clear()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def product_by_tiles(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As Intel's manual has TDPBF16PS, over tiles of 32 numbers: even and odd numbers have a float32 sum each, and both
    are added up and then to what the tiles before have come to. Products of two bfloat16 are exact.
    """
    x, weight = (torch.nn.functional.pad(each, (0, -each.shape[1] % 32)).float() for each in (x, weight))
    sums = torch.zeros(len(x), len(weight))
    for first in range(0, x.shape[1], 32):
        pairs = torch.zeros(2, *sums.shape)
        for k in range(32):
            pairs[k % 2] += x[:, first + k, None] * weight[:, first + k]
        sums += pairs[0] + pairs[1]
    return (sums if bias is None else sums + bias.float()).bfloat16()


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_the_architectures_to_the_last_bit(shape: tuple[int, int, int], has_bias: bool) -> None:
    rows, in_size, out_size = shape
    # What lies around the rows is not theirs.
    x = torch.full((rows + 2, in_size), torch.nan).bfloat16()[1:-1].copy_(numbers(rows, in_size))
    weight, bias = numbers(out_size, in_size, seed=1), numbers(out_size, seed=2) if has_bias else None
    got = linear(x, pack(weight, is_deterministic=True), bias)
    assert torch.equal(got, product_by_tiles(x, weight, bias))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_as_exact_as_torchs(shape: tuple[int, int, int]) -> None:
    rows, in_size, out_size = shape
    x, weight, bias = numbers(rows, in_size), numbers(out_size, in_size, seed=1), numbers(out_size, seed=2)
    truth = x.double() @ weight.double().T + bias.double()
    assert_exact(linear(x, pack(weight), bias), truth, torch.nn.functional.linear(x, weight, bias))


def test_a_row_has_the_same_bits_among_any_number_where_it_must() -> None:
    x, weight = numbers(300, 1030), pack(numbers(200, 1030, seed=1), is_deterministic=True)
    whole = linear(x, weight)
    for rows in (1, 2, 3, 4, 15, 16, 17, 31, 32, 33, 97, 193):
        for first in (0, 1, 300 - rows):
            assert torch.equal(linear(x[first : first + rows], weight), whole[first : first + rows]), (rows, first)


def test_few_rows_are_left_to_vectors_where_bits_may_differ() -> None:
    x, weight = numbers(8, 4096), numbers(2000, 4096, seed=1)
    free, by_tiles = pack(weight), product_by_tiles(x, weight)
    for rows in range(1, 9):
        is_tiled = torch.equal(linear(x[:rows], free), by_tiles[:rows])
        assert is_tiled == (rows >= 4), rows


def test_denormal_numbers_count_as_zero_and_become_zero() -> None:
    tiny, huge = 2.0**-130, 2.0**120
    x = torch.zeros(6, 64).bfloat16()
    weight = torch.zeros(3, 64).bfloat16()
    # Denormal alone; in a product that is not; a product that is denormal; a normal one.
    for k, (left, right) in enumerate(((tiny, 1.0), (tiny, huge), (2.0**-70, 2.0**-60), (2.0**-60, 2.0**-60))):
        x[k, k], weight[:, k] = left, right
    got = linear(x, pack(weight, is_deterministic=True))
    assert got[:, 0].tolist() == [0.0, 0.0, 0.0, 2.0**-120, 0.0, 0.0]


def test_infinities_and_nan_stay_in_their_rows() -> None:
    x, weight = numbers(20, 64), numbers(40, 64, seed=1).abs()
    expected = linear(x, pack(weight))
    x[3, 5], x[18, 7] = torch.inf, torch.nan
    got = linear(x, pack(weight))
    others = [row for row in range(20) if row not in (3, 18)]
    assert torch.equal(got[others], expected[others])
    assert got[3].isinf().all() and got[18].isnan().all()


def test_threads_change_no_bit() -> None:
    x, weight, bias = numbers(210, 300), pack(numbers(1000, 300, seed=1)), numbers(1000, seed=2)
    alone = linear(x, weight, bias)
    set_num_threads(4, torch.bfloat16)
    try:
        for _ in range(10):
            assert torch.equal(linear(x, weight, bias), alone)
    finally:
        set_num_threads(1, torch.bfloat16)


def test_float32_takes_no_tiles() -> None:
    x, weight = numbers(20, 64).float(), numbers(40, 64, seed=1).float()
    torch.testing.assert_close(linear(x, pack(weight)), x @ weight.T)


def test_one_call_computes_what_the_layers_do_one_by_one(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **ARCHITECTURES["qwen2"])
    adapters = {"one": make_tiny_adapter(tmp_path / "one", checkpoint, rank=5)}
    prompt = [(7 * i + 5) % 380 for i in range(70)]
    logits = []
    for is_layer_by_layer in (False, True):
        runner = TinyRunner(
            checkpoint, dtype="bfloat16", adapters=adapters, is_layer_by_layer=is_layer_by_layer, is_deterministic=True
        )
        runner.extend_all({"a": prompt[:40], "b": prompt[:20]}, adapters={"a": "one"})
        logits.append(runner.extend_all({"a": prompt[:41], "b": prompt, "c": prompt[:3]}, adapters={"a": "one"}))
    assert torch.equal(*logits)


async def test_with_deterministic_a_request_is_the_same_alone_and_in_a_batch(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model")
    requests = random_requests()[:6]
    async with recording(checkpoint, dtype="bfloat16", is_deterministic=True) as recorder:
        alone = [await recorder.run(request) for request in requests]
    async with recording(checkpoint, dtype="bfloat16", is_deterministic=True) as recorder:
        together = await recorder.run_together(requests)
    for got, expected in zip(together, alone, strict=True):
        assert got.token_ids == expected.token_ids
        assert torch.equal(got.logprobs, expected.logprobs)


def test_the_build_has_the_instructions_and_no_other_tile_than_it_shapes(isa: str, tmp_path: Path) -> None:
    (tmp_path / "product.cpp").write_text(SOURCE)
    root = Path(kernels.linear.__file__).parents[2]
    codes = {}
    for name in ("amx", isa):
        command = ["c++", "-std=c++20", "-O2", *flags(name), f"-I{root}", "-S", "-o", "-", "product.cpp"]
        codes[name] = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    lines = {" ".join(line.split()) for line in codes["amx"].splitlines()}
    products = {line for line in lines if line.startswith("tdpbf16ps")}
    # In AT&T's order: right, left, sums.
    assert products == {
        f"tdpbf16ps %tmm{right}, %tmm{left}, %tmm{sums}"
        for sums, left, right in ((0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7))
    }
    assert "tilerelease" in lines and any(line.startswith("ldtilecfg") for line in lines)
    if isa == EMULATED:
        assert "tdpbf16ps" not in codes[isa]
