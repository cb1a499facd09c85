"""Adapter files as bytes, including invalid ones."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np

PREFIX = "base_model.model.model.layers"


def config_bytes(**fields: Any) -> bytes:
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj"]}
    return json.dumps(given | fields).encode()


def tensors(*, layers: int = 2, rank: int = 4, size: int = 64, projection: str = "q_proj") -> dict[str, Any]:
    """Named float32 matrices, as PEFT names them."""
    block = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
    random = np.random.default_rng(0)
    found = {}
    for layer in range(layers):
        name = f"{PREFIX}.{layer}.{block}.{projection}"
        found[f"{name}.lora_A.weight"] = random.normal(size=(rank, size)).astype(np.float32)
        found[f"{name}.lora_B.weight"] = random.normal(size=(size, rank)).astype(np.float32)
    return found


def weights_bytes(
    matrices: dict[str, Any], *, dtype: str = "F32", change: Callable[[dict[str, Any]], object] | None = None
) -> bytes:
    """A safetensors file. dtype: of all matrices. change: called with the header before it is written."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for key, matrix in matrices.items():
        encoded = _encode(np.asarray(matrix, np.float32), dtype)
        header[key] = {
            "dtype": dtype,
            "shape": list(matrix.shape),
            "data_offsets": [len(data), len(data) + len(encoded)],
        }
        data += encoded
    if change is not None:
        change(header)
    encoded_header = json.dumps(header).encode()
    return len(encoded_header).to_bytes(8, "little") + encoded_header + bytes(data)


def _encode(matrix: "np.ndarray[Any, np.dtype[np.float32]]", dtype: str) -> bytes:
    if dtype == "F16":
        return matrix.astype(np.float16).tobytes()
    if dtype == "BF16":
        return (matrix.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return matrix.tobytes()


async def in_chunks(content: bytes, size: int = 65536) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def objects_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
