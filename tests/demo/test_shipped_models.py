"""What the repository ships: files, sizes and fields of the trained models and adapters."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from demo.export import model_config
from demo.model import SHAPES
from demo.styles import STYLES

DEMO = Path(__file__).parents[2] / "demo"


@pytest.mark.parametrize("size", SHAPES)
def test_a_model_has_all_its_files_and_the_right_config(size: str) -> None:
    folder = DEMO / "models" / size
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"}
    config = json.loads((folder / "config.json").read_text())
    assert config == json.loads(json.dumps(model_config(SHAPES[size])))
    assert config["max_position_embeddings"] == 2048
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
        assert {tensor.get_dtype() for tensor in tensors} == {"BF16"}


def test_the_models_are_small_enough_for_a_clone() -> None:
    assert sum(path.stat().st_size for path in (DEMO / "models").rglob("*") if path.is_file()) < 25e6


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("name", STYLES)
def test_an_adapter_is_under_a_megabyte_and_says_what_it_is(size: str, name: str) -> None:
    folder, style = DEMO / "adapters" / size / name, STYLES[name]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1e6
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", style.rank, 2 * style.rank)
    assert config["target_modules"] == list(style.targets)
    assert (folder / "README.md").exists()
    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        assert len(list(file.keys())) == SHAPES[size].num_layers * len(style.targets) * 2
