"""Decides when a process that died is started again, and when to give up. Pure."""

QUICK_DEATH_S = 10.0
MAX_FAILED_STARTS = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 4.0


class Restarts:
    """Only starts that fail on their own count towards giving up.

    A process that ran well and is killed from outside is always restarted. A process that the kernel kills during its
    first start, for lack of memory, is not restarted forever.
    """

    def __init__(self, *, has_probe: bool) -> None:
        self._has_probe = has_probe
        self._was_ready = False
        self._num_quick_deaths = 0
        self.num_failed_starts = 0

    def note(self, status: int, *, lived_s: float, became_ready: bool) -> None:
        """Note that the process died. status: its exit code, negative for a signal."""
        is_quick = lived_s < QUICK_DEATH_S
        self._num_quick_deaths = self._num_quick_deaths + 1 if is_quick else 1
        # Without a probe, a process counts as ready once it has lived for a while.
        if became_ready if self._has_probe else not is_quick:
            self._was_ready = True
            self.num_failed_starts = 0
        elif status >= 0 or (self._has_probe and not self._was_ready):
            self.num_failed_starts += 1

    @property
    def is_hopeless(self) -> bool:
        return self.num_failed_starts >= MAX_FAILED_STARTS

    def is_bad_input(self, status: int, *, code: int) -> bool:
        """Whether the process exited with `code` because of bad input; one that ran before had good input."""
        return status == code and not self._was_ready

    @property
    def pause_s(self) -> float:
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (min(self._num_quick_deaths, 10) - 1))
