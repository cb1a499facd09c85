"""CUDA graphs of the decode step, two for each batch size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Graph(Protocol):
    def capture(self, function: Callable[[], object]) -> None: ...

    def replay(self) -> None: ...


class CudaGraph:
    """pool: the memory pool of the graph, from `torch.cuda.graph_pool_handle`."""

    def __init__(self, pool: Any) -> None:
        self._pool, self._graph = pool, torch.cuda.CUDAGraph()

    def capture(self, function: Callable[[], object]) -> None:
        with torch.cuda.graph(self._graph, pool=self._pool):
            function()

    def replay(self) -> None:
        self._graph.replay()


def cuda_graphs() -> Callable[[], Graph]:
    """Makes graphs that share one memory pool, since only one of them runs at a time. A pool ends with its last graph
    and cannot be used again."""
    pool = torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(pool)


def bucket_sizes(max_seqs: int) -> list[int]:
    """1, 2, 4, then in steps of 8 to 64 and of 16 to 256, up to the first size that holds max_seqs."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 257, 16)]
    return [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < max_seqs]


@dataclass(frozen=True, slots=True)
class _Step:
    """states, words: static tensors that hold the graphs' results."""

    forward: Graph
    choice: Graph
    states: Tensor
    words: Tensor


class DecodeGraphs:
    """A step's tables lie in static memory. A separate graph chooses the tokens, so that grammars' masks are uploaded
    while the model computes.

    forward: a step's number of rows -> its states to choose from; choose: those states -> words.
    """

    def __init__(
        self,
        sizes: list[int],
        forward: Callable[[int], Tensor],
        choose: Callable[[Tensor], Tensor],
        *,
        new_graph: Callable[[], Graph],
    ) -> None:
        self._sizes = sorted(sizes)
        self._forward, self._choose = forward, choose
        self._new_graph = new_graph
        self._steps: dict[int, _Step] = {}

    def capture(self, prepare: Callable[[int], None]) -> None:
        """prepare: fills the static memory for a step of the given number of rows. Captures the largest size first, so
        that the smaller ones find their memory in the pool."""
        for size in reversed(self._sizes):
            prepare(size)
            self._steps[size] = self._capture(size)

    def size_for(self, num_rows: int) -> int | None:
        return next((size for size in self._sizes if size >= num_rows and size in self._steps), None)

    def replay_forward(self, size: int) -> None:
        self._steps[size].forward.replay()

    def replay_choice(self, size: int) -> Tensor:
        self._steps[size].choice.replay()
        return self._steps[size].words

    def _capture(self, size: int) -> _Step:
        # Once outside a graph, so that kernels are compiled and libraries take their own memory.
        self._choose(self._forward(size))
        forward, choice, results = self._new_graph(), self._new_graph(), []
        forward.capture(lambda: results.append(self._forward(size)))
        choice.capture(lambda: results.append(self._choose(results[0])))
        return _Step(forward, choice, *results)
