"""The tokens with which a step's constrained answers may continue, found while the model computes."""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from llguidance import LLExecutor
from numpy.typing import NDArray

from worker.guided.grammar import Matcher


@dataclass(frozen=True, slots=True)
class Masks:
    """rows: rows of the step's batch, ascending; other rows may have any token. words [rows, words] int32: bit t % 32
    of word t // 32 tells whether token t may come. For a matcher that hit a limit meanwhile, the bits mean nothing."""

    rows: list[int]
    words: NDArray[np.int32]


class MaskFiller:
    """Fills the masks of one step at a time in its own threads, without the GIL."""

    def __init__(self, vocab_size: int) -> None:
        self._words = np.empty((0, -(-vocab_size // 32)), dtype=np.int32)
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    def begin(self, matchers: Sequence[Matcher | None]) -> "Future[Masks] | None":
        """matchers: of a step's answers, None for those without a grammar; do not use them until the result is there.

        The result's words stay valid until the next call. Returns None if no answer has a grammar.
        """
        rows = [row for row, matcher in enumerate(matchers) if matcher is not None]
        if not rows:
            return None
        if self._thread is None:
            # The first request with a grammar starts the threads.
            self._thread = ThreadPoolExecutor(1, "masks")
            self._executor = LLExecutor(num_threads=max(1, min(8, (os.cpu_count() or 1) // 2)))
        if len(rows) > len(self._words):
            self._words = np.empty((len(rows), self._words.shape[1]), dtype=np.int32)
        return self._thread.submit(self._fill, rows, [each for each in matchers if each is not None])

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def _fill(self, rows: list[int], matchers: list[Matcher]) -> Masks:
        assert self._executor is not None
        words = self._words[: len(rows)]
        places = [(matcher.ll, i) for i, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(places, words.ctypes.data, words.shape[1] * 4, len(rows))
        return Masks(rows, words)
