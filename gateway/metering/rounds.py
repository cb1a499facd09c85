"""A loop of rounds that stops on a signal. While its target is unavailable it retries at growing intervals and logs
that once."""

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
"""The target may start a moment later than we do; only a longer absence is logged."""
STALLED_S = 60.0


def stop_on_signals() -> threading.Event:
    """Set by SIGTERM and SIGINT."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    return stop


class Rounds:
    """The loop, and its state for a status server."""

    def __init__(self, target: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._turned_at = clock()
        self.is_target_there = False

    @property
    def is_alive(self) -> bool:
        """Whether the loop turned within the last STALLED_S seconds."""
        return self._clock() - self._turned_at < STALLED_S

    def turn(self) -> None:
        """Note progress: called in each round, and from inside a round that takes long for a good reason."""
        self._turned_at = self._clock()

    def run(self, one_round: Callable[[], object], stop: threading.Event, *, poll_s: float = POLL_S) -> None:
        """Run rounds until `stop` is set, `poll_s` apart. `one_round` may raise TargetUnavailable."""
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
