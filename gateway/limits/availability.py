"""Is Redis away? The one place that decides it, from what the connections see.

One late answer is not away: that request is decided locally. Away is: no connection at all, or LATE_IN_A_ROW times
nothing within a deadline and no answer in time between. (The first time makes us ask by PINGs, so that silence is
told from a single slow answer within two deadlines, also where nobody else asks.) Back is: PINGs answered in time,
ANSWERS_TO_RETURN in a row, more of them for a Redis that has just been back.
"""

from collections.abc import Callable

LATE_IN_A_ROW = 3
ANSWERS_TO_RETURN = 2
MAX_ANSWERS_TO_RETURN = 32
CALM_S = 10.0
"""Back for longer than this is back for good: the next return is as easy as the first."""


class Availability:
    """Pure. `on_trouble` is called when something began to be wrong; then probe until `is_calm`."""

    def __init__(self, clock: Callable[[], float], *, on_trouble: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._on_trouble = on_trouble
        self._num_lines = 0
        self._num_late = 0
        self._num_answers = 0
        self._answers_to_return = ANSWERS_TO_RETURN
        self._returned_at = float("-inf")
        self.is_away = True
        """Nobody has connected yet."""

    @property
    def is_calm(self) -> bool:
        """Nothing to probe."""
        return not self.is_away and self._num_late == 0

    @property
    def can_return(self) -> bool:
        return self.is_away and self._num_lines > 0 and self._num_answers >= self._answers_to_return

    def note_answer(self) -> None:
        self._num_late = 0
        self._num_answers += 1

    def note_late(self) -> None:
        self._num_late += 1
        self._num_answers = 0
        if self._num_late >= LATE_IN_A_ROW:
            self._go_away()
        self._on_trouble()

    def note_lines(self, num_lines: int) -> None:
        self._num_lines = num_lines
        if num_lines == 0:
            self._num_answers = 0
            self._go_away()
            self._on_trouble()

    def note_returned(self) -> None:
        """What had been decided locally is told."""
        if self._num_lines == 0:
            return
        self.is_away = False
        self._num_late = 0
        self._returned_at = self._clock()

    def _go_away(self) -> None:
        if self.is_away:
            return
        self.is_away = True
        self._num_answers = 0
        is_relapse = self._clock() - self._returned_at < CALM_S
        grown = min(2 * self._answers_to_return, MAX_ANSWERS_TO_RETURN)
        self._answers_to_return = grown if is_relapse else ANSWERS_TO_RETURN
