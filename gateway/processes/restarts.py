"""When a child that died is restarted, and when to give up. Pure."""

QUICK_DEATH_S = 10.0
MAX_FAILED_STARTS = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 4.0


class Restarts:
    """The restart history of one slot. A start counts as failed if the child dies before it is ready."""

    def __init__(self) -> None:
        self._num_quick_deaths = 0
        self._num_failed_starts = 0

    def note(self, *, lived_s: float, was_ready: bool) -> None:
        self._num_quick_deaths = self._num_quick_deaths + 1 if lived_s < QUICK_DEATH_S else 0
        self._num_failed_starts = 0 if was_ready else self._num_failed_starts + 1

    @property
    def is_hopeless(self) -> bool:
        """No child will start here, so the gateway must end unless another process serves."""
        return self._num_failed_starts >= MAX_FAILED_STARTS

    @property
    def pause_s(self) -> float:
        """Pause before the next start; none if the last child lived at least QUICK_DEATH_S."""
        if self._num_quick_deaths == 0:
            return 0.0
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (min(self._num_quick_deaths, 10) - 1))
