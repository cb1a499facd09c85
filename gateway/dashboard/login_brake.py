"""A light brake on guessing keys at the login: failures by client address, in this process."""

from collections import deque

MAX_FAILURES = 10
WINDOW_S = 60.0
_MAX_CLIENTS = 10_000


class FailedLogins:
    def __init__(self) -> None:
        self._failures: dict[str, deque[float]] = {}

    def wait_s(self, client: str, *, now: float) -> float:
        """0 when the client may try, else the seconds until it may."""
        failures = self._failures.get(client)
        if failures is None:
            return 0.0
        while failures and failures[0] <= now - WINDOW_S:
            failures.popleft()
        if not failures:
            del self._failures[client]
        return failures[0] + WINDOW_S - now if len(failures) >= MAX_FAILURES else 0.0

    def note(self, client: str, *, now: float) -> None:
        failures = self._failures.pop(client, None) or deque(maxlen=MAX_FAILURES)
        failures.append(now)
        self._failures[client] = failures
        if len(self._failures) > _MAX_CLIENTS:
            self._failures.pop(next(iter(self._failures)))
