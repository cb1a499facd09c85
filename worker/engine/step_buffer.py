"""A step's tables on their way to the GPU: packed into one vector of 32-bit words, in a single copy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 4
"""In words; 16 bytes, as the widest loads of a kernel."""

Fields = Mapping[str, tuple[NDArray[Any], int]]


class StepBuffer:
    """Static memory on the GPU, and two pinned copies of it on the host: one is being copied while the other is being
    written."""

    def __init__(self, num_words: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._on_device = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._pinned = [torch.zeros(num_words, dtype=torch.int32, pin_memory=is_cuda) for _ in range(2)]
        self._copied: list[Any] = [torch.cuda.Event() for _ in range(2)] if is_cuda else [None, None]
        self._turn = 0

    def put(self, fields: Fields) -> dict[str, Tensor]:
        """fields: name -> (values of 4 or 8 bytes, in one dimension; room in words). Returns the views on the GPU, as
        long as their rooms; their places depend on the names and rooms alone. Raises ValueError if values exceed their
        room, or rooms the buffer."""
        places, end = {}, 0
        for name, (values, room) in fields.items():
            words = values.view(np.int32)
            if len(words) > room or end + room > len(self._on_device):
                raise ValueError(f"StepBuffer: no room for {len(words)} words of {name!r}")
            places[name] = (end, words, room)
            end += -(-room // _ALIGNMENT) * _ALIGNMENT
        self._turn = 1 - self._turn
        pinned, copied = self._pinned[self._turn], self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        host = pinned.numpy()
        for begin, words, _ in places.values():
            host[begin : begin + len(words)] = words
        end = min(end, len(self._on_device))
        self._on_device[:end].copy_(pinned[:end], non_blocking=True)
        if copied is not None:
            copied.record()
        return {name: self._on_device[begin : begin + room] for name, (begin, _, room) in places.items()}
