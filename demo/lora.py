"""Low-rank adapters on the plain model, saved in PEFT's format."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.export import save_weights
from demo.model import Llama
from demo.styles import Style


class LoraLinear(nn.Module):
    """A frozen linear map plus `scale * B A`; A [rank, in], B [out, rank], B starts at zero."""

    def __init__(self, frozen: nn.Linear, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.frozen, self.scale = frozen, scale
        self.a = nn.Parameter(
            torch.empty(rank, frozen.in_features).uniform_(-1, 1, generator=generator) / math.sqrt(frozen.in_features)
        )
        self.b = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


def add_adapter(model: Llama, style: Style, seed: int) -> dict[str, LoraLinear]:
    """Freeze the model and wrap the style's target modules; returns them by their path in the model."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.requires_grad_(False)
    wrapped = {}
    for path, module in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        if isinstance(module, nn.Linear) and name in style.targets:
            wrapped[path] = LoraLinear(module, style.rank, adapter_scale(), generator)
            setattr(model.get_submodule(parent), name, wrapped[path])
    return wrapped


def adapter_scale() -> float:
    """alpha / rank."""
    return 2.0


def save_adapter(wrapped: dict[str, LoraLinear], style: Style, base: str, folder: Path) -> None:
    """Write adapter_model.safetensors (bfloat16) and adapter_config.json. base: the name of the base model."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for path, module in wrapped.items():
        for name, weight in (("lora_A", module.a), ("lora_B", module.b)):
            weights[f"base_model.model.model.{path}.{name}.weight"] = weight.detach().to(torch.bfloat16).contiguous()
    save_weights(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": style.rank,
        "lora_alpha": int(style.rank * adapter_scale()),
        "lora_dropout": 0.0,
        "target_modules": list(style.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
