"""Adapters against peft, mixed in one batch, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.compute import TinyRunner
from worker.lora.adapter import AdapterError, read_adapter
from worker.model.config import read_config

# peft 0.21 still reads a property that transformers 5 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
KINDS: dict[str, dict[str, Any]] = {
    "qv": {"rank": 4},
    "all": {"rank": 8, "target_modules": ALL},
    "rslora": {"rank": 16, "target_modules": ALL, "use_rslora": True, "alpha": 8.0},
    "mlp": {"rank": 1, "target_modules": ("up_proj", "down_proj"), "alpha": 2.0},
}
PROMPT = [(13 * i + 5) % 380 for i in range(70)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: make_tiny_adapter(root / name, checkpoint, seed=i, **kind) for i, (name, kind) in enumerate(KINDS.items())
    }


@pytest.fixture(scope="module")
def expected(checkpoint: Path, adapters: dict[str, Path]) -> dict[str | None, torch.Tensor]:
    """peft's logits after the prompt, by adapter, computed in float64."""
    prompt = torch.tensor([PROMPT])
    with torch.inference_mode():
        logits: dict[str | None, torch.Tensor] = {
            None: LlamaForCausalLM.from_pretrained(checkpoint).double()(prompt).logits[0, -1]
        }
        for name, path in adapters.items():
            model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(checkpoint), path).eval().double()
            logits[name] = model(prompt).logits[0, -1]
    return logits


def test_a_mixed_batch_gives_each_its_own_adapter_as_peft_does(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, torch.Tensor]
) -> None:
    runner = TinyRunner(checkpoint, adapters=adapters)
    names = [*KINDS, None]
    by_request: dict[str, str | None] = {f"request {i}": name for i, name in enumerate(names)}
    runner.extend_all(dict.fromkeys(by_request, PROMPT[:-3]), adapters=by_request)
    for end in (-2, -1, None):
        logits = runner.extend_all(dict.fromkeys(by_request, PROMPT[:end]))
    for name, row in zip(names, logits, strict=True):
        torch.testing.assert_close(row.double(), expected[name], atol=2e-4, rtol=0)
    # Random B makes every adapter loud: the comparison above could not pass by leaving them out.
    assert all((expected[name] - expected[None]).abs().max() > 0.1 for name in KINDS)


def test_target_modules_may_be_a_regex(checkpoint: Path, tmp_path: Path) -> None:
    path = make_tiny_adapter(tmp_path, checkpoint)
    edit_config(path, target_modules=r".*\.(q|v)_proj")
    config = read_config(checkpoint)
    assert len(read_adapter(path, config, torch.float32).weights) == 2 * config.num_layers


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use_dora": True}, "use_dora is not supported"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights is 'pissa_niter_16'"),
        ({"init_lora_weights": "olora"}, "which altered the base model's weights"),
        ({"init_lora_weights": "corda"}, "init_lora_weights is 'corda'"),
        ({"init_lora_weights": "loftq"}, "convert the adapter to plain LoRA first"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices is not supported"),
        ({"r": 1000}, "from 1 to 256, got 1000"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"r": 0}, "r must be a number from 1"),
        ({"r": 8}, "expected [8, 64]"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(
    checkpoint: Path, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    path = make_tiny_adapter(tmp_path, checkpoint)
    edit_config(path, **change)
    assert_refused(path, checkpoint, reason)


def test_tensors_of_other_modules_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    path = make_tiny_adapter(tmp_path, checkpoint)
    weights = load_file(path / "adapter_model.safetensors")
    weights["base_model.model.lm_head.lora_A.weight"] = torch.zeros(4, 64)
    save_file(weights, path / "adapter_model.safetensors")
    assert_refused(path, checkpoint, "lm_head.lora_A.weight' is not supported")


@pytest.mark.parametrize(("side", "value"), [("A", math.nan), ("B", math.inf)])
def test_weights_that_are_not_finite_are_refused(checkpoint: Path, tmp_path: Path, side: str, value: float) -> None:
    path = make_tiny_adapter(tmp_path, checkpoint)
    weights = load_file(path / "adapter_model.safetensors")
    next(weights[key] for key in weights if f"lora_{side}" in key)[0, 0] = value
    save_file(weights, path / "adapter_model.safetensors")
    assert_refused(path, checkpoint, "not all weights are finite in torch.float32")


def test_an_adapter_for_a_deeper_model_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    deep = make_tiny_checkpoint(tmp_path / "deep", num_layers=3)
    assert_refused(make_tiny_adapter(tmp_path / "adapter", deep), checkpoint, "is for layer 2, the model has 2")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_missing_and_truncated_files_are_refused(checkpoint: Path, tmp_path: Path, name: str) -> None:
    path = make_tiny_adapter(tmp_path, checkpoint)
    (path / name).write_bytes((path / name).read_bytes()[:100])
    assert_refused(path, checkpoint, name)
    (path / name).unlink()
    assert_refused(path, checkpoint, "the file is missing")


def test_what_was_read_does_not_change_when_its_file_is_written_anew(checkpoint: Path, tmp_path: Path) -> None:
    path = make_tiny_adapter(tmp_path, checkpoint)
    read = read_adapter(path, read_config(checkpoint), torch.float32)
    before = [a.clone() for a, _ in read.weights.values()]
    # To the place where it lies. Were the file mapped, a look beyond its end would end this process.
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    weights.write_bytes(b"")
    assert all(torch.equal(a, old) for (a, _), old in zip(read.weights.values(), before, strict=True))


def edit_config(path: Path, **change: object) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def assert_refused(path: Path, checkpoint: Path, reason: str) -> None:
    with pytest.raises(AdapterError) as caught:
        read_adapter(path, read_config(checkpoint), torch.float32)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
