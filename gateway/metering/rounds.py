"""A loop of rounds that stops on a signal, waits at growing intervals while its target is away, and says so once."""

import logging
import signal
import threading
import time
from collections.abc import Callable

from gateway.metering.drain import TargetUnavailable

_log = logging.getLogger(__name__)

POLL_S = 0.2
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0
_PATIENCE_S = 2.0
"""The target may start a moment later than we do; away for longer is worth a line."""
STALLED_S = 60.0


def stop_on_signals() -> threading.Event:
    """Set by SIGTERM and SIGINT."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    return stop


class Rounds:
    """What a status server tells of the loop, and the loop."""

    def __init__(self, target: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._turned_at = clock()
        self.is_target_there = False

    @property
    def is_alive(self) -> bool:
        """The loop turned lately."""
        return self._clock() - self._turned_at < STALLED_S

    def turn(self) -> None:
        """Called in each round, and within one that takes long for a good reason."""
        self._turned_at = self._clock()

    def run(self, one_round: Callable[[], object], stop: threading.Event, *, poll_s: float = POLL_S) -> None:
        """Until `stop` is set. `one_round` may raise TargetUnavailable; `poll_s` passes between rounds."""
        pause_s = away_s = 0.0
        while not stop.wait(pause_s or poll_s):
            self.turn()
            try:
                one_round()
            except TargetUnavailable as error:
                self.is_target_there = False
                if away_s <= _PATIENCE_S < away_s + pause_s:
                    _log.warning("%s takes no usage, which waits: %s", self._target, error)
                away_s += pause_s
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            else:
                self.is_target_there = True
                if away_s > _PATIENCE_S:
                    _log.info("%s takes usage again", self._target)
                pause_s = away_s = 0.0
