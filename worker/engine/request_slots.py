"""Which sequence has which row of the tables that stay on the GPU from step to step."""

from worker.engine.sequence import Sequence


class RequestSlots:
    """A row for each running sequence; a row is given to another one when its owner runs no more and none is free."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(reversed(range(num_slots)))
        self._slots: dict[Sequence, int] = {}
        self._is_ready: set[Sequence] = set()

    def of(self, sequence: Sequence) -> int:
        """Of one that has a row."""
        return self._slots[sequence]

    def take(self, sequence: Sequence) -> tuple[int, bool]:
        """Its row, and whether the row holds what `confirm` was told of. At most num_slots sequences run at a time."""
        if sequence not in self._slots:
            if not self._free:
                self._sweep()
            self._slots[sequence] = self._free.pop()
        return self._slots[sequence], sequence in self._is_ready

    def confirm(self, sequences: list[Sequence]) -> None:
        """Their rows are filled, and from now on kept up to date by the steps themselves."""
        self._is_ready.update(sequences)

    def doubt(self, sequences: list[Sequence]) -> None:
        """A step of theirs was cut off: their rows are filled again."""
        self._is_ready.difference_update(sequences)

    def _sweep(self) -> None:
        for sequence in [each for each in self._slots if not each.is_running]:
            self._free.append(self._slots.pop(sequence))
            self._is_ready.discard(sequence)
