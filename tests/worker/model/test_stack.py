"""The layers in one call against the layers one by one, beside other adapters, and for some rows only."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.decoder_layers import DecoderLayers, LayerWeights, Projection
from kernels.linear import pack
from kernels.lora import empty_pages, plan_lora
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
        # The last layer's products have other numbers of rows in one call.
        runner = TinyRunner(
            checkpoint, dtype=dtype, adapters=adapters, is_layer_by_layer=is_layer_by_layer, is_deterministic=True
        )
        names = {"a": "one", "b": None, "c": "two", "d": "one"}
        runner.extend_all({"a": PROMPT[:40], "c": PROMPT[:9], "b": PROMPT[:20]}, adapters=names)
        logits.append(runner.extend_all({"a": PROMPT[:41], "d": PROMPT, "b": PROMPT[:21]}, adapters=names))
    assert torch.equal(*logits)


@pytest.mark.parametrize("rows", [[], [0], [3, 4, 39], list(range(40))])
def test_rows_that_are_wanted_are_as_among_all(tmp_path: Path, rows: list[int]) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", num_layers=3)
    model = load_llama(checkpoint, read_config(checkpoint), torch.bfloat16, is_deterministic=True)

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


def layer_of(hidden: int = 64, wide: int = 96) -> LayerWeights:
    """Of 4 heads, 2 key heads and a head_dim of 16."""

    def projection(out_size: int, in_size: int, slices: tuple[int, ...]) -> Projection:
        pages = empty_pages(1, in_size=in_size, slice_sizes=slices, dtype=torch.float32)
        return Projection(pack(torch.zeros(out_size, in_size)), torch.zeros(out_size), pages)

    return LayerWeights(
        attention_norm=torch.ones(hidden),
        qkv=projection(128, hidden, (64, 32, 32)),
        q_norm=torch.ones(16),
        k_norm=torch.ones(16),
        o=projection(hidden, 64, (hidden,)),
        mlp_norm=torch.ones(hidden),
        gate_up=projection(2 * wide, hidden, (wide, wide)),
        down=projection(hidden, wide, (hidden,)),
        window=None,
    )


def test_weights_that_do_not_fit_each_other_are_refused_by_name() -> None:
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "eps": 1e-5}
    good, other = layer_of(), layer_of(hidden=32, wide=48)
    DecoderLayers([good, good], **sizes)
    long_bias = replace(good.o, bias=torch.zeros(65))
    changes: list[dict[str, Any]] = [
        *({name: getattr(other, name)} for name in ("qkv", "o", "gate_up", "attention_norm", "mlp_norm")),
        {"q_norm": torch.ones(64)},
        {"k_norm": torch.ones(16, dtype=torch.float64)},
        {"o": long_bias},
        {"down": replace(good.down, pages=good.o.pages)},
    ]
    for change in changes:
        with pytest.raises(ValueError, match="decoder_layers: layer 1: "):
            DecoderLayers([good, replace(good, **change)], **sizes)


@pytest.mark.parametrize("wrong", ["slots", "block size", "stride", "plan"])
def test_a_step_that_does_not_fit_is_refused(wrong: str) -> None:
    layers = DecoderLayers([layer_of()], num_heads=4, num_kv_heads=2, head_dim=16, eps=1e-5)
    cache, slots = torch.zeros(2, 16, 4, 16), torch.arange(3)
    if wrong == "slots":
        slots = slots.int()
    elif wrong == "block size":
        cache = torch.zeros(2, 24, 4, 16)
    elif wrong == "stride":
        cache = torch.zeros(2, 16, 4, 32)[..., :16]
    lora = plan_lora([0], [4 if wrong == "plan" else 3], [[0]], max_run=4)
    plan = plan_attention([3], [3], [[0]], block_size=16, dtype=torch.float32)
    with pytest.raises(ValueError, match="does not fit"):
        layers(torch.zeros(3, 64), [cache], torch.ones(3, 1, 16), torch.ones(3, 1, 16), slots, plan, lora=lora)
