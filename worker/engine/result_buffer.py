"""A step's results on their way from the GPU."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(slots=True)
class Fetched:
    """Words that arrive in pinned memory, which is reused once they were read."""

    words: Tensor
    copied: Any
    is_read: bool = field(default=False)

    def read(self) -> NDArray[np.int32]:
        """Wait for the words, the only wait of a step. Call once."""
        if self.copied is not None:
            self.copied.synchronize()
        self.is_read = True
        return self.words.numpy().copy()


class ResultBuffer:
    """Two pinned vectors in turn: a step's words arrive in one while the last step's are read from the other."""

    def __init__(self, num_words: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._pinned = [torch.zeros(num_words, dtype=torch.int32, pin_memory=is_cuda) for _ in range(2)]
        self._copied: list[Any] = [torch.cuda.Event() for _ in range(2)] if is_cuda else [None, None]
        self._fetched: list[Fetched | None] = [None, None]
        self._turn = 0

    def fetch(self, words: Tensor) -> Fetched:
        """words: int32, on the GPU."""
        self._turn = 1 - self._turn
        before = self._fetched[self._turn]
        assert before is None or before.is_read, "a third step was launched before the first one was read"
        pinned, copied = self._pinned[self._turn][: len(words)], self._copied[self._turn]
        pinned.copy_(words, non_blocking=True)
        if copied is not None:
            copied.record()
        fetched = self._fetched[self._turn] = Fetched(pinned, copied)
        return fetched
