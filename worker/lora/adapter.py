"""Reading a PEFT LoRA folder: adapter_config.json and adapter_model.safetensors."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from protocol.peft_config import BadLoraConfig, LoraConfig, read_config
from worker.model.config import ModelConfig
from worker.model.llama import projection_shapes

_KEY = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>\d+)\.(?:self_attn|mlp)\.(?P<projection>\w+)\.lora_(?P<side>[AB])\.weight"
)


class AdapterError(Exception):
    """An adapter that cannot be served: one line naming the file and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {' '.join(reason.split())}")


@dataclass(frozen=True)
class Adapter:
    """weights: (layer, projection) -> a [rank, in], b [rank, out], with the scaling multiplied into b."""

    rank: int
    digest: str
    weights: dict[tuple[int, str], tuple[Tensor, Tensor]]

    @property
    def num_bytes(self) -> int:
        return sum(a.nbytes + b.nbytes for a, b in self.weights.values())


def read_adapter(folder: Path, config: ModelConfig, dtype: torch.dtype) -> Adapter:
    """Raises AdapterError."""
    config_path = folder / "adapter_config.json"
    lora = _read_config(config_path)
    path = folder / "adapter_model.safetensors"
    try:
        # Not memory-mapped: rewriting the file would change the adapter while it is in use, or crash this process.
        content = path.read_bytes()
        tensors = load(content)
        digest = hashlib.sha256(config_path.read_bytes())
    except FileNotFoundError as error:
        raise AdapterError(path, "the file is missing") from error
    except (OSError, SafetensorError) as error:
        raise AdapterError(path, f"not a whole safetensors file: {error}") from error
    digest.update(content)
    del content
    sides = _sort_tensors(path, tensors, config)
    weights = {}
    for (layer, projection), pair in sides.items():
        out_size, in_size = projection_shapes(config)[projection]
        for side, shape in (("A", (lora.rank, in_size)), ("B", (out_size, lora.rank))):
            if side not in pair:
                raise AdapterError(path, f"layer {layer} {projection}: lora_{side} is missing")
            if tuple(pair[side].shape) != shape:
                raise AdapterError(
                    path,
                    f"layer {layer} {projection}: lora_{side} has shape {list(pair[side].shape)}, "
                    f"expected {list(shape)} for this model and rank",
                )
        b = pair["B"].float().T * lora.scaling
        weights[layer, projection] = a, b = pair["A"].to(dtype), b.to(dtype).contiguous()
        if not (a.isfinite().all() and b.isfinite().all()):
            # Such weights would spread: a batch also multiplies them with zeros for the tokens of other adapters.
            raise AdapterError(path, f"layer {layer} {projection}: not all weights are finite in {dtype}")
    return Adapter(lora.rank, digest.hexdigest()[:16], weights)


def _read_config(path: Path) -> LoraConfig:
    try:
        return read_config(path.read_bytes())
    except FileNotFoundError as error:
        raise AdapterError(path, "the file is missing") from error
    except OSError as error:
        raise AdapterError(path, f"cannot be read: {error}") from error
    except BadLoraConfig as error:
        raise AdapterError(path, str(error)) from error


def _sort_tensors(
    path: Path, tensors: dict[str, Tensor], config: ModelConfig
) -> dict[tuple[int, str], dict[str, Tensor]]:
    """The file's tensors decide which projections are adapted, since target_modules may be a list or any regex."""
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
