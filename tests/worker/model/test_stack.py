"""The layers in one call against the layers one by one, beside other adapters, and for some rows only."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.native import library
from kernels.paged_attention import plan_attention
from tests.support.architectures import ARCHITECTURES
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.compute import TinyRunner
from worker.model.config import read_config
from worker.model.llama import load_llama
from worker.model.rotary import rope_tables

pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX2 or no compiler")
PROMPT = [(7 * i + 5) % 380 for i in range(70)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_a_neighbours_adapter_changes_no_bit(tmp_path: Path, config: dict[str, Any], dtype: str) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **config)
    runner = TinyRunner(checkpoint, dtype=dtype, adapters={"one": make_tiny_adapter(tmp_path / "one", checkpoint)})
    for start, end in ((0, 40), (40, 69), (69, 70)):
        alone = runner.extend("alone", PROMPT[:end])
        logits = runner.extend_all({"with": PROMPT[:end], "own": PROMPT[:end]}, adapters={"own": "one"})
        assert torch.equal(logits[0], alone), (start, end)
        assert not torch.equal(logits[1], alone)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_one_call_computes_what_the_layers_do_one_by_one(tmp_path: Path, config: dict[str, Any], dtype: str) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **config)
    adapters = {
        "one": make_tiny_adapter(
            tmp_path / "one", checkpoint, rank=5, target_modules=("q_proj", "o_proj", "down_proj")
        ),
        "two": make_tiny_adapter(tmp_path / "two", checkpoint, rank=33, target_modules=("v_proj", "up_proj")),
    }
    logits = []
    for is_layer_by_layer in (False, True):
        runner = TinyRunner(checkpoint, dtype=dtype, adapters=adapters, is_layer_by_layer=is_layer_by_layer)
        names = {"a": "one", "b": None, "c": "two", "d": "one"}
        runner.extend_all({"a": PROMPT[:40], "c": PROMPT[:9], "b": PROMPT[:20]}, adapters=names)
        logits.append(runner.extend_all({"a": PROMPT[:41], "d": PROMPT, "b": PROMPT[:21]}, adapters=names))
    assert torch.equal(*logits)


@pytest.mark.parametrize("rows", [[], [0], [3, 4, 39], list(range(40))])
def test_rows_that_are_wanted_are_as_among_all(tmp_path: Path, rows: list[int]) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", num_layers=3)
    model = load_llama(checkpoint, read_config(checkpoint), torch.bfloat16)

    def states(rows: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        caches = [torch.zeros(3, 16, 4, 16, dtype=torch.bfloat16) for _ in range(3)]
        plan = plan_attention([40], [40], [[2, 0, 1]], block_size=16, dtype=torch.bfloat16)
        cos, sin = rope_tables(model.config.rope, 16, 40, torch.bfloat16)
        slots = torch.cat([torch.arange(32, 48), torch.arange(24)])
        x = torch.nn.functional.embedding(torch.tensor(PROMPT[:40]), model.embedding)
        assert model.stack is not None
        return model.stack(x, caches, cos, sin, slots, plan, rows=rows), torch.stack(caches)

    (all_states, all_caches), (some, caches) = states(None), states(torch.tensor(rows, dtype=torch.int64))
    assert torch.equal(some, all_states[rows])
    assert torch.equal(caches, all_caches)
    with pytest.raises(ValueError, match="rows"):
        states(torch.tensor([0, 40]))
