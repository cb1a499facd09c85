"""How many tokens the steps computed, as a histogram that any thread may read."""

from bisect import bisect_left

BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""The same as vLLM's."""


class StepSizes:
    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.num_tokens = 0

    def record(self, num_tokens: int) -> None:
        self._counts[bisect_left(BOUNDS, num_tokens)] += 1
        self.num_tokens += num_tokens

    def cumulated(self) -> list[tuple[str, int]]:
        """For each bound, and for `+Inf`, how many steps had at most that many tokens."""
        total, found = 0, []
        for bound, count in zip((*map(float, BOUNDS), "+Inf"), tuple(self._counts), strict=True):
            total += count
            found.append((str(bound), total))
        return found
