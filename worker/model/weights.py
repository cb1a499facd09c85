"""A checkpoint's tensors: safetensors, one file or sharded, read straight into the target dtype."""

import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kernels.linear import is_fast
from worker.model.config import CheckpointError, ModelConfig, read_json

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SAMPLE_BYTES = 1 << 20


class Checkpoint:
    """The open tensor files of a folder; a context manager. Every error is a CheckpointError naming its file.

    Files are memory-mapped, and pages once read stay resident until the file is unmapped: call `unmap` now and then.
    """

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        """device: where the tensors are put."""
        self._device = device
        self._folder = folder
        self._file_of = _locate(folder)
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exc: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.unmap()

    def unmap(self) -> None:
        """Drop the mappings, once no tensor read so far needs them; the next read opens its file again."""
        self._open.clear()

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, *, is_kept: bool = True) -> Tensor:
        """is_kept: the tensor has its own memory; otherwise it may alias the mapped file, whose contents may change."""
        path = self._file_of.get(name)
        if path is None:
            raise CheckpointError(self._folder, f"the tensor {name!r} is missing")
        try:
            tensor: Tensor = self._file(path).get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(path, f"cannot read the tensor {name!r}: {error}") from error
        if tuple(tensor.shape) != shape:
            raise CheckpointError(path, f"the tensor {name!r} has shape {list(tensor.shape)}, expected {list(shape)}")
        if not tensor.is_floating_point():
            raise CheckpointError(path, f"the tensor {name!r} has type {tensor.dtype}, expected a floating-point one")
        return tensor.to(device=self._device, dtype=dtype, copy=is_kept)

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = _open_file(path)
        return self._open[path]


def content_version(folder: Path) -> str:
    """Identifies the weights, for prefix caches and usage events: 16 hex digits of SHA-256 over config.json and, for
    each tensor file, its name, size, header and one-mebibyte samples from its start, middle and end.

    Hashing whole files would add seconds per gigabyte to every start.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(set(_locate(folder).values())):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            digest.update(file.read(header_size))
            for start in (8 + header_size, size // 2, max(size - _SAMPLE_BYTES, 0)):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def target_dtype(name: str, config: ModelConfig, folder: Path, *, is_gpu: bool = False) -> torch.dtype:
    """The dtype to compute in. `auto` means the checkpoint's own where this machine is fast at it (any GPU is),
    otherwise float32."""
    chosen = config.dtype if name == "auto" else name
    if chosen not in ("float32", "bfloat16", "float16"):
        raise CheckpointError(folder / "config.json", f"dtype {chosen!r} is not float32, bfloat16 or float16")
    dtype: torch.dtype = getattr(torch, chosen)
    return torch.float32 if name == "auto" and not (is_gpu or is_fast(dtype)) else dtype


def _locate(folder: Path) -> dict[str, Path]:
    """Tensor name -> the file that holds it."""
    if (folder / _INDEX).exists():
        weight_map = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise CheckpointError(folder / _INDEX, "no weight_map of tensors' names to files'")
        for name in sorted(set(weight_map.values())):
            if not (folder / name).is_file():
                raise CheckpointError(folder / name, "the file is missing, though the index names it")
        return {tensor: folder / name for tensor, name in weight_map.items()}
    path = folder / _SINGLE
    if not path.is_file():
        raise CheckpointError(path, "the file is missing")
    return dict.fromkeys(_open_file(path).keys(), path)


def _open_file(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise CheckpointError(path, f"not a whole safetensors file: {error}") from error
