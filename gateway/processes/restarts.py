"""When a child that died is started again, and when that is given up. Pure."""

QUICK_DEATH_S = 10.0
MAX_FAILED_STARTS = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 4.0


class Restarts:
    """Of one slot. A child counts as failed when it dies before it was ready."""

    def __init__(self) -> None:
        self._num_quick_deaths = 0
        self._num_failed_starts = 0

    def note(self, *, lived_s: float, was_ready: bool) -> None:
        self._num_quick_deaths = self._num_quick_deaths + 1 if lived_s < QUICK_DEATH_S else 0
        self._num_failed_starts = 0 if was_ready else self._num_failed_starts + 1

    @property
    def is_hopeless(self) -> bool:
        """It will not start, so that the gateway has to end unless another process serves."""
        return self._num_failed_starts >= MAX_FAILED_STARTS

    @property
    def pause_s(self) -> float:
        """Before the next start: none for what ran for a while."""
        if self._num_quick_deaths == 0:
            return 0.0
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (min(self._num_quick_deaths, 10) - 1))
