"""Assigns sequences to rows of the tables that stay on the GPU from step to step."""

from worker.engine.sequence import Sequence


class RequestSlots:
    """A row for each running sequence. A row changes owners when its owner runs no more and no row is free."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(reversed(range(num_slots)))
        self._slots: dict[Sequence, int] = {}
        self._is_ready: set[Sequence] = set()

    def of(self, sequence: Sequence) -> int:
        """The row of a sequence that has one."""
        return self._slots[sequence]

    def take(self, sequence: Sequence) -> tuple[int, bool]:
        """The sequence's row, and whether `confirm` marked it as filled. At most num_slots sequences run at a time."""
        if sequence not in self._slots:
            if not self._free:
                self._sweep()
            self._slots[sequence] = self._free.pop()
        return self._slots[sequence], sequence in self._is_ready

    def confirm(self, sequences: list[Sequence]) -> None:
        """The sequences' rows are filled; from now on the steps themselves keep them up to date."""
        self._is_ready.update(sequences)

    def doubt(self, sequences: list[Sequence]) -> None:
        """A step of these sequences was cut off, so their rows must be filled again."""
        self._is_ready.difference_update(sequences)

    def _sweep(self) -> None:
        for sequence in [each for each in self._slots if not each.is_running]:
            self._free.append(self._slots.pop(sequence))
            self._is_ready.discard(sequence)
