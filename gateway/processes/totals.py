"""The metrics of a gateway of several processes. Totals never decrease, even if a process dies."""

from collections.abc import Collection

from gateway.metric_snapshots import Snapshot, merge, only_totals
from gateway.metrics import merge_processes


class Totals:
    """The last metrics of each child, and the totals of children that are gone.

    Metrics of a killed child since its last message are lost, but no total that was ever shown is.
    """

    def __init__(self) -> None:
        self._told: dict[int, Snapshot] = {}
        self._of_the_gone: Snapshot = ()

    def note(self, child: int, told: Snapshot) -> None:
        self._told[child] = told

    def retire(self, child: int) -> None:
        told = self._told.pop(child, ())
        self._of_the_gone = merge([self._of_the_gone, only_totals(told)])

    def of_all(self, *, silent: Collection[int] = ()) -> Snapshot:
        """Merged metrics. `silent`: children that did not answer now; their gauges are stale and left out."""
        return merge_processes(
            [
                *(only_totals(told) if child in silent else told for child, told in self._told.items()),
                self._of_the_gone,
            ]
        )
