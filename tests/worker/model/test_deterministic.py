"""With is_deterministic a request's logits are the same to the last bit, whatever happens around it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.linear import linear, pack
from tests.support.architectures import ARCHITECTURES
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.engine_requests import make_request
from tests.support.recording import NUM_OUTPUT, PROMPT, Recorded, random_requests, recording
from worker.engine.request import EngineRequest

# There are kernels of our own for the first two at most; float16 takes the paths of other machines everywhere.
DTYPES = ("float32", "bfloat16", "float16")
CASES = [(name, dtype) for name in ARCHITECTURES for dtype in DTYPES]


@pytest.fixture(params=CASES, ids="-".join)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """An engine's, with two adapters of different ranks."""
    name, dtype = request.param
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **ARCHITECTURES[name])
    adapters = {
        "one": make_tiny_adapter(tmp_path / "one", checkpoint, rank=4),
        "two": make_tiny_adapter(tmp_path / "two", checkpoint, rank=5),
    }
    return {"checkpoint": checkpoint, "dtype": dtype, "adapters": adapters, "is_deterministic": True}


def mixed_requests() -> list[EngineRequest]:
    adapters = (None, "one", "two")
    return [replace(each, adapter=adapters[i % 3]) for i, each in enumerate(random_requests()[:12])]


def assert_equal(got: Recorded, expected: Recorded) -> None:
    assert got.token_ids == expected.token_ids
    assert torch.equal(got.logprobs, expected.logprobs)


async def test_a_request_is_the_same_alone_and_in_a_batch_with_a_cold_and_a_warm_cache(options: dict[str, Any]) -> None:
    requests = mixed_requests()
    async with recording(**options) as recorder:
        alone = [await recorder.run(request) for request in requests]
        warm = [await recorder.run(request) for request in requests]
        assert recorder.engine.report().cached_tokens_total > 0
    async with recording(**options) as recorder:
        together = await recorder.run_together(requests)
    for others in (warm, together):
        for got, expected in zip(others, alone, strict=True):
            assert_equal(got, expected)


async def test_a_request_is_the_same_in_every_chunk_and_after_preemption(options: dict[str, Any]) -> None:
    # From less than a block to several, so that the pool is outgrown.
    sampling = make_request([], max_tokens=50).sampling
    requests = [
        replace(each, prompt_ids=each.prompt_ids[: 5 + i % 4 * 40], sampling=sampling)
        for i, each in enumerate(mixed_requests())
    ]
    async with recording(**options) as recorder:
        alone = [await recorder.run(request) for request in requests]
    cramping = {"max_model_len": 160, "num_blocks": 10, "max_num_seqs": 16, "max_batched_tokens": 17}
    async with recording(**options, **cramping) as recorder:
        cramped = await recorder.run_together(requests)
        assert recorder.engine.report().num_preemptions_total > 0
    for got, expected in zip(cramped, alone, strict=True):
        assert_equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_an_adapter_is_the_same_beside_one_of_a_higher_rank(tmp_path: Path, dtype: str) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model")
    modules = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    folders = {
        name: make_tiny_adapter(tmp_path / name, checkpoint, rank=rank, target_modules=modules)
        for name, rank in (("one", 64), ("two", 97))
    }
    request = make_request(PROMPT, max_tokens=NUM_OUTPUT, adapter="one")
    recorded = []
    for names in (("one",), ("two", "one")):
        adapters = {name: folders[name] for name in names}
        async with recording(checkpoint, dtype=dtype, adapters=adapters, is_deterministic=True) as recorder:
            recorded.append(await recorder.run(request))
    assert_equal(*recorded)


async def test_this_check_sees_a_difference_of_a_hundred_thousandth(options: dict[str, Any]) -> None:
    request = make_request(PROMPT, max_tokens=NUM_OUTPUT)
    async with recording(**options) as recorder:
        expected = await recorder.run(request)
    async with recording(**options, offset=1e-5) as recorder:
        got = await recorder.run(request)
    with pytest.raises(AssertionError):
        assert_equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_a_product_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    weight, x = torch.randn(70, 1031).to(dtype), torch.randn(50, 1031).to(dtype)
    packed = pack(weight, is_deterministic=True)
    together = linear(x, packed)
    torch.testing.assert_close(together.double(), x.double() @ weight.double().T, atol=1.0, rtol=2e-2)
    for num_rows in (1, 2, 15, 16, 17, 33):
        for first in range(0, 50 - num_rows, 7):
            assert torch.equal(linear(x[first : first + num_rows].contiguous(), packed), together[first:][:num_rows])
