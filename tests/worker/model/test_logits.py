"""Logits of every supported architecture and layout against transformers', whole, in chunks and token by token."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support.architectures import ARCHITECTURES, LLAMA3_ROPE, MISTRAL, QWEN2, QWEN3, SLIDING
from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.compute import TinyRunner

VARIANTS: dict[str, dict[str, Any]] = {
    "gqa tied": {},
    "mha": {"num_kv_heads": 4},
    "mqa untied": {"num_kv_heads": 1, "tie_word_embeddings": False},
    "odd head_dim": {"head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "theta": {"rope_theta": 500000.0},
    "llama3 rope": {"rope_scaling": LLAMA3_ROPE},
    "linear rope, old spelling": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "transformers 5 layout": {"is_transformers5": True, "rope_scaling": LLAMA3_ROPE, "rope_theta": 20000.0},
    "dynamic rope": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "dynamic rope over its window": {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_model_len": 64},
    "dynamic rope, transformers 5": {
        "is_transformers5": True,
        "rope_scaling": {"rope_type": "dynamic", "factor": 3.0},
        "max_model_len": 100,
    },
    "mistral": MISTRAL | {"sliding_window": None},
    "mistral sliding": MISTRAL | {"sliding_window": 40},
    "mistral sliding by one block": MISTRAL | {"sliding_window": 16, "is_transformers5": True},
    "qwen2": QWEN2,
    "qwen2 sliding from a layer on": QWEN2 | SLIDING | {"max_window_layers": 1},
    "qwen3": QWEN3,
    "qwen3 sliding in named layers": QWEN3 | SLIDING | {"layer_types": ["sliding_attention", "full_attention"]},
}
PROMPT = [(11 * i + 3) % 380 for i in range(150)]


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), **request.param)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> torch.Tensor:
    """Logits after every token of the prompt."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0]


@pytest.mark.parametrize("chunk_lens", [[150], [64, 64, 22], [7, 33, 1, 16, 93], [140] + [1] * 10])
def test_logits_equal_those_of_transformers(checkpoint: Path, expected: torch.Tensor, chunk_lens: list[int]) -> None:
    runner = TinyRunner(checkpoint, max_model_len=len(PROMPT))
    done = 0
    for chunk_len in chunk_lens:
        done += chunk_len
        logits = runner.extend("a", PROMPT[:done])
        torch.testing.assert_close(logits, expected[done - 1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_chunks_of_every_size_give_the_same_logits(tmp_path: Path, architecture: dict[str, Any]) -> None:
    runner = TinyRunner(make_tiny_checkpoint(tmp_path, **architecture))
    prompt = PROMPT[:70]
    whole = runner.extend("whole", prompt)
    for size in range(1, 70):
        for end in (*range(size, 70, size), 70):
            logits = runner.extend("in chunks", prompt[:end])
        runner.free("in chunks")
        torch.testing.assert_close(logits, whole, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("variant", "mistake"),
    [
        ("theta", {"rope_theta": 490000.0}),
        ("llama3 rope", {"rope_scaling": LLAMA3_ROPE | {"high_freq_factor": 3.9}}),
        ("dynamic rope over its window", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.1}}),
        ("mistral sliding", {"sliding_window": 41}),
        ("qwen3 sliding in named layers", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("gqa tied", {"rms_norm_eps": 1e-4}),
    ],
)
def test_a_small_mistake_would_be_seen(tmp_path: Path, variant: str, mistake: dict[str, Any]) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path, **VARIANTS[variant])
    right = TinyRunner(checkpoint, max_model_len=len(PROMPT)).extend("a", PROMPT)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | mistake))
    wrong = TinyRunner(checkpoint, max_model_len=len(PROMPT)).extend("a", PROMPT)
    assert (wrong - right).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_half_types_err_at_most_twice_as_much_as_in_transformers(
    tmp_path: Path, architecture: dict[str, Any], dtype: torch.dtype
) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path, dtype=dtype, **architecture)
    with torch.inference_mode():
        prompt = torch.tensor([PROMPT])
        truth, theirs = (
            AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype_)(prompt).logits[0, -20:].double()
            for dtype_ in (torch.float64, dtype)
        )
    runner = TinyRunner(checkpoint, dtype=str(dtype).removeprefix("torch."))
    ours = torch.stack([runner.extend("a", PROMPT[:done]) for done in range(131, 151)]).double()
    assert (ours - truth).square().mean() <= 4 * (theirs - truth).square().mean()


def test_a_sharded_checkpoint_is_the_same_model(tmp_path: Path) -> None:
    whole = make_tiny_checkpoint(tmp_path / "whole")
    sharded = make_tiny_checkpoint(tmp_path / "sharded")
    weights = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file_name, members in shards.items():
        save_file({name: weights[name] for name in members}, sharded / file_name)
    index = {"weight_map": {name: file_name for file_name, members in shards.items() for name in members}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(TinyRunner(whole).extend("a", PROMPT), TinyRunner(sharded).extend("a", PROMPT))
