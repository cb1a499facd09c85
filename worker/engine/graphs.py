"""CUDA graphs of the decode step, one for each size of a batch."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Graph(Protocol):
    def capture(self, function: Callable[[], object]) -> None: ...

    def replay(self) -> None: ...


class CudaGraph:
    """All graphs share one pool of memory: only one of them runs at a time."""

    _pool: Any = None

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, function: Callable[[], object]) -> None:
        with torch.cuda.graph(self._graph, pool=CudaGraph._pool):
            function()
        CudaGraph._pool = self._graph.pool()

    def replay(self) -> None:
        self._graph.replay()


def bucket_sizes(max_seqs: int) -> list[int]:
    """1, 2, 4, then by 8 to 64, then by 16 to 256, up to the first that holds max_seqs."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 257, 16)]
    return [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < max_seqs]


class DecodeGraphs:
    """compute: of the step of so many rows, whose tables lie in static memory -> its result, static too."""

    def __init__(
        self, sizes: list[int], compute: Callable[[int], Tensor], *, new_graph: Callable[[], Graph] = CudaGraph
    ) -> None:
        self._sizes = sorted(sizes)
        self._compute = compute
        self._new_graph = new_graph
        self._graphs: dict[int, tuple[Graph, Tensor]] = {}

    def capture(self, prepare: Callable[[int], None]) -> None:
        """prepare: fill the static memory for a step of so many rows. From the largest on, so that the smaller ones
        find their memory in the pool."""
        for size in reversed(self._sizes):
            prepare(size)
            self._capture(size)

    def size_for(self, num_rows: int) -> int | None:
        return next((size for size in self._sizes if size >= num_rows and size in self._graphs), None)

    def replay(self, size: int) -> Tensor:
        graph, result = self._graphs[size]
        graph.replay()
        return result

    def _capture(self, size: int) -> None:
        # Once outside: kernels are compiled, and libraries take their own memory.
        self._compute(size)
        graph, results = self._new_graph(), []
        graph.capture(lambda: results.append(self._compute(size)))
        self._graphs[size] = (graph, results[0])
