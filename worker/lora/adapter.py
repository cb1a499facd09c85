"""Reading a PEFT LoRA folder: adapter_config.json and adapter_model.safetensors."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from protocol.artifacts import MAX_RANK
from worker.model.config import ModelConfig
from worker.model.llama import projection_shapes

_KEY = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>\d+)\.(?:self_attn|mlp)\.(?P<projection>\w+)\.lora_(?P<side>[AB])\.weight"
)
_UNSUPPORTED = (
    "use_dora",
    "modules_to_save",
    "layers_to_transform",
    "layer_replication",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "trainable_token_indices",
    "target_parameters",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "arrow_config",
)
_ALTERS_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the base model's weights, too: over unchanged ones the adapter means something else."""


class AdapterError(Exception):
    """An adapter that cannot be served: one line naming the file and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {' '.join(reason.split())}")


@dataclass(frozen=True)
class Adapter:
    """weights: (layer, projection) -> a [rank, in], b [rank, out], the scaling multiplied into b."""

    rank: int
    digest: str
    weights: dict[tuple[int, str], tuple[Tensor, Tensor]]

    @property
    def num_bytes(self) -> int:
        return sum(a.nbytes + b.nbytes for a, b in self.weights.values())


def read_adapter(folder: Path, config: ModelConfig, dtype: torch.dtype) -> Adapter:
    """Raises AdapterError."""
    config_path = folder / "adapter_config.json"
    rank, scaling = _read_config(config_path)
    path = folder / "adapter_model.safetensors"
    try:
        content = config_path.read_bytes() + path.read_bytes()
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise AdapterError(path, "the file is missing") from error
    except (OSError, SafetensorError) as error:
        raise AdapterError(path, f"not a whole safetensors file: {error}") from error
    sides = _sort_tensors(path, tensors, config)
    weights = {}
    for (layer, projection), pair in sides.items():
        out_size, in_size = projection_shapes(config)[projection]
        for side, shape in (("A", (rank, in_size)), ("B", (out_size, rank))):
            if side not in pair:
                raise AdapterError(path, f"layer {layer} {projection}: lora_{side} is missing")
            if tuple(pair[side].shape) != shape:
                raise AdapterError(
                    path,
                    f"layer {layer} {projection}: lora_{side} has shape {list(pair[side].shape)}, "
                    f"expected {list(shape)} for this model and rank",
                )
        b = pair["B"].float().T * scaling
        weights[layer, projection] = a, b = pair["A"].to(dtype), b.to(dtype).contiguous()
        if not (a.isfinite().all() and b.isfinite().all()):
            # They would spread: a batch multiplies the tokens of other adapters with these too, by zeros.
            raise AdapterError(path, f"layer {layer} {projection}: not all weights are finite in {dtype}")
    return Adapter(rank, hashlib.sha256(content).hexdigest()[:16], weights)


def _read_config(path: Path) -> tuple[int, float]:
    """Rank and scaling."""
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        if raw.get("peft_type") != "LORA":
            raise AdapterError(path, f"peft_type is {raw.get('peft_type')!r}, only LORA is supported")
        for name in _UNSUPPORTED:
            if raw.get(name):
                raise AdapterError(path, f"{name} is not supported")
        initialisation = raw.get("init_lora_weights", True)
        if isinstance(initialisation, str) and initialisation.lower().startswith(_ALTERS_BASE):
            raise AdapterError(
                path,
                f"init_lora_weights {initialisation!r} is not supported: it altered the base model's weights; convert "
                "the adapter to plain LoRA first",
            )
        if raw.get("bias", "none") != "none" or raw.get("lora_bias"):
            raise AdapterError(path, "biases are not supported, only bias none")
        rank, alpha = int(raw["r"]), float(raw["lora_alpha"])
    except FileNotFoundError as error:
        raise AdapterError(path, "the file is missing") from error
    except KeyError as error:
        raise AdapterError(path, f"the field {error.args[0]!r} is missing") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise AdapterError(path, f"cannot be read: {error}") from error
    if not 1 <= rank <= MAX_RANK:
        raise AdapterError(path, f"r must be at least 1 and at most {MAX_RANK}, got {rank}")
    return rank, alpha / (rank**0.5 if raw.get("use_rslora") else rank)


def _sort_tensors(
    path: Path, tensors: dict[str, Tensor], config: ModelConfig
) -> dict[tuple[int, str], dict[str, Tensor]]:
    """What the file holds decides which projections are adapted: target_modules may be a list or any regex."""
    sides: dict[tuple[int, str], dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None or match["projection"] not in projection_shapes(config):
            raise AdapterError(
                path, f"the tensor {key!r} is not supported; adapt q, k, v, o, gate, up and down_proj only"
            )
        layer = int(match["layer"])
        if layer >= config.num_layers:
            raise AdapterError(path, f"the tensor {key!r} is for layer {layer}, the model has {config.num_layers}")
        sides.setdefault((layer, match["projection"]), {})[match["side"]] = tensor
    if not sides:
        raise AdapterError(path, "the file holds no LoRA tensors")
    return sides
