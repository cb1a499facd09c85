"""A folder that cannot be served is refused in one line that names the file and the reason."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import make_tiny_checkpoint
from worker.engine.parts import load_parts
from worker.engine.settings import EngineSettings
from worker.model.config import CheckpointError
from worker.model.weights import content_version


def edit_config(**change: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))

    return edit


def edit_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return edit


def truncate(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1000])  # type: ignore[return-value]


NORM, UP = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"
MISTRAL: dict[str, object] = {"architectures": ["MistralForCausalLM"]}
QWEN3: dict[str, object] = {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True}
CASES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json", "the file is missing"),
    "config not json": (lambda f: (f / "config.json").write_text("{"), "config.json", "not valid JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "config.json", "not a JSON object"),
    "no field": (edit_config(hidden_size=None), "config.json", "hidden_size"),
    "architecture": (edit_config(architectures=["MambaForCausalLM"]), "config.json", "MambaForCausalLM"),
    "rope": (edit_config(rope_scaling={"rope_type": "yarn", "factor": 2.0}), "config.json", "'yarn'"),
    "rope factor": (edit_config(rope_scaling={"rope_type": "dynamic", "factor": 0.5}), "config.json", "at least 1"),
    "rope not an object": (edit_config(rope_scaling="linear"), "config.json", "must be an object, got 'linear'"),
    "rope factor infinite": (
        edit_config(rope_scaling={"rope_type": "dynamic", "factor": math.inf}),
        "config.json",
        "finite, got inf",
    ),
    "infinite": (edit_config(num_key_value_heads=math.inf), "config.json", "cannot convert float infinity"),
    "experts": (
        edit_config(architectures=["MixtralForCausalLM"], num_local_experts=8),
        "config.json",
        "mixture-of-experts models (MixtralForCausalLM) are not supported yet",
    ),
    "window": (edit_config(**MISTRAL, sliding_window=-1), "config.json", "sliding_window must be a positive integer"),
    "layer types": (
        edit_config(**QWEN3, sliding_window=64, layer_types=["full_attention", "linear_attention"]),
        "config.json",
        "linear_attention",
    ),
    "too few layer types": (
        edit_config(**QWEN3, sliding_window=64, layer_types=["full_attention"]),
        "config.json",
        "layer_types must be 2 of",
    ),
    "quantized": (edit_config(quantization_config={"bits": 4}), "config.json", "quantized"),
    "heads": (edit_config(num_key_value_heads=3), "config.json", "cannot share 3"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors", "the file is missing"),
    "truncated": (truncate("model.safetensors"), "model.safetensors", "not a whole safetensors file"),
    "garbage": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 4000),
        "model.safetensors",
        "not a whole safetensors file",
    ),
    "no tensor": (edit_weights(lambda w: w.pop(UP)), "", f"{UP!r} is missing"),
    "shape": (
        edit_weights(lambda w: w.update({UP: w[UP].T.contiguous()})),
        "model.safetensors",
        "has shape [64, 128], expected [128, 64]",
    ),
    "integers": (edit_weights(lambda w: w.update({NORM: w[NORM].int()})), "model.safetensors", "floating-point"),
    "shard": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}'),
        "gone.safetensors",
        "the file is missing, though the index names it",
    ),
    "index": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        "model.safetensors.index.json",
        "no weight_map",
    ),
    "index of numbers": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5, "b": "x"}}'),
        "model.safetensors.index.json",
        "no weight_map",
    ),
}


@pytest.mark.parametrize(("spoil", "file_name", "reason"), CASES.values(), ids=CASES.keys())
def test_the_error_is_one_line_naming_file_and_reason(
    tmp_path: Path, spoil: Callable[[Path], object], file_name: str, reason: str
) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    spoil(folder)
    with pytest.raises(CheckpointError) as caught:
        load_parts(EngineSettings(model_path=folder))
    message = str(caught.value)
    assert str(folder / file_name) in message and reason in message and "\n" not in message


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere/config\.json: the file is missing"):
        load_parts(EngineSettings(model_path=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_model_len": 513}, "exceeds the model's window of 512"),
        ({"num_blocks": 31}, "needs 32 KV blocks, there is room for 31"),
        ({"dtype": "int8"}, "dtype 'int8'"),
    ],
)
def test_settings_that_do_not_fit_the_checkpoint_are_named(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=reason):
        load_parts(EngineSettings(model_path=folder, **settings))  # type: ignore[arg-type]


def test_dynamic_scaling_stretches_the_window_as_far_as_its_factor_goes(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert load_parts(EngineSettings(model_path=folder)).max_model_len == 512
    assert load_parts(EngineSettings(model_path=folder, max_model_len=1024)).max_model_len == 1024
    with pytest.raises(CheckpointError, match="exceeds the model's window of 1024"):
        load_parts(EngineSettings(model_path=folder, max_model_len=1025))


def test_an_end_outside_the_vocabulary_is_none(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, -1, 384]}')
    assert load_parts(EngineSettings(model_path=folder)).eos_token_ids == {2}


def test_the_version_names_the_weights(tmp_path: Path) -> None:
    versions = {
        content_version(make_tiny_checkpoint(tmp_path / name, seed=seed))
        for name, seed in (("a", 0), ("the same again", 0), ("b", 1))
    }
    assert len(versions) == 2
