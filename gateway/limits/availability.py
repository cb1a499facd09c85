"""Is Redis away? The one place that decides this, from what the connections observe.

A single late answer does not count as away; only that request is decided locally. Redis is away if there is no
connection at all, if all connections fall silent at once, or after LATE_IN_A_ROW missed deadlines without an answer in
time between them. (The first missed deadline starts PINGs, so that silence is distinguished from a single slow answer
within two deadlines, even if there are no other commands.) Redis is back after ANSWERS_TO_RETURN PINGs in a row were
answered in time; more are needed if Redis has only just been back.

If answers come after a silence before any deadline is missed, Redis has only paused, and may do so again: it may wait
for a core, or fork. Then silence alone does not count for PAUSE_S.
"""

from collections.abc import Callable

LATE_IN_A_ROW = 3
ANSWERS_TO_RETURN = 2
MAX_ANSWERS_TO_RETURN = 32
PAUSE_S = 60.0
CALM_S = 10.0
"""After being back for this long, the next return needs no more answers than the first."""


class Availability:
    """Pure. on_trouble: called when something begins to go wrong; the caller must then probe until `is_calm`.
    on_away: called when Redis is taken for away."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        on_trouble: Callable[[], None] = lambda: None,
        on_away: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._on_trouble = on_trouble
        self._on_away = on_away
        self._num_connections = 0
        self._num_late = 0
        self._num_answers = 0
        self._answers_to_return = ANSWERS_TO_RETURN
        self._returned_at = float("-inf")
        self._silence_counts_from = float("-inf")
        self._answers_after_pause: int | None = None
        """While a silence may still turn out to be a pause: how many answers it then takes to return."""
        self.is_away = True
        """Starts as away, because there is no connection yet."""

    @property
    def is_calm(self) -> bool:
        """Whether there is nothing to probe."""
        return not self.is_away and self._num_late == 0

    @property
    def can_return(self) -> bool:
        return self.is_away and self._num_connections > 0 and self._num_answers >= self._answers_to_return

    def note_answer(self) -> None:
        if self._answers_after_pause is not None:
            self._answers_to_return, self._answers_after_pause = self._answers_after_pause, None
            self._silence_counts_from = self._clock() + PAUSE_S
        self._num_late = 0
        self._num_answers += 1

    def note_late(self) -> None:
        self._num_late += 1
        self._num_answers = 0
        self._answers_after_pause = None
        if self._num_late >= LATE_IN_A_ROW:
            self._go_away()
        self._on_trouble()

    def note_silence(self) -> None:
        """No connection has brought anything for long, though something was asked on each."""
        if self.is_away or self._clock() < self._silence_counts_from:
            return
        answers_after_pause = self._answers_to_return
        self._go_away()
        self._answers_after_pause = answers_after_pause
        self._on_trouble()

    def note_connections(self, num_connections: int) -> None:
        self._num_connections = num_connections
        if num_connections == 0:
            self._num_answers = 0
            self._answers_after_pause = None
            self._go_away()
            self._on_trouble()

    def note_forgotten(self) -> None:
        """Redis answers, but lacks what it was told: it must be told again, as after being away."""
        self._go_away()
        self._on_trouble()

    def note_returned(self) -> None:
        """Redis has been told everything that was decided locally."""
        if self._num_connections == 0:
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
        self._on_away()
