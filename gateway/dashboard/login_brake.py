"""A brake on guessing keys at the login, which nobody can use to lock out the holder of a generated key.

A key that we generated holds 256 random bits, which no rate of guessing finds. It is always checked, so that the right
one always passes, and a wrong key of this form is not counted. Only a key that an operator chose can be guessed: only
keys of another form than ours are counted when they are wrong, and refused while the brake is on.

Failed logins are counted by address and in total. The address is the client's, found by `trusted_proxies`. After
`MAX_FAILURES` in a window an address is braked, so that it cannot contribute more to the total. Ten addresses are
enough to brake everybody who logs in with a chosen key. This is a trade-off: without the total, many addresses could
guess a chosen key together. People who use generated keys are never affected.

The login at the identity provider uses the same brake without the total.
"""

from collections import deque
from ipaddress import ip_network

MAX_FAILURES = 10
MAX_FAILURES_OF_ALL = 100
WINDOW_S = 60.0
_MAX_CLIENTS = 10_000


class FailedLogins:
    def __init__(self, *, is_for_all: bool = True) -> None:
        """is_for_all: failures from many addresses together brake everybody."""
        self._is_for_all = is_for_all
        self._failures: dict[str, deque[float]] = {}
        self._failures_of_all: deque[float] = deque(maxlen=MAX_FAILURES_OF_ALL)

    def wait_s(self, client: str, *, now: float) -> float:
        """Seconds until this client may try again; 0 if it may now."""
        known = self._failures.get(_place(client), deque(maxlen=MAX_FAILURES))
        of_all = _wait_s(self._failures_of_all, now=now) if self._is_for_all else 0.0
        return max(_wait_s(known, now=now), of_all)

    def note(self, client: str, *, now: float) -> None:
        place = _place(client)
        failures = self._failures.pop(place, None) or deque(maxlen=MAX_FAILURES)
        failures.append(now)
        self._failures[place] = failures
        self._failures_of_all.append(now)
        if len(self._failures) > _MAX_CLIENTS:
            self._failures.pop(next(iter(self._failures)))


def _wait_s(failures: deque[float], *, now: float) -> float:
    """Seconds until fewer failures than the bound lie in the window."""
    is_full = len(failures) == failures.maxlen
    return max(0.0, failures[0] + WINDOW_S - now) if is_full else 0.0


def _place(client: str) -> str:
    """The address to count by. For IPv6 it is the /64 network: a client that has one address has all 2^64 of it."""
    return str(ip_network((client, 64), strict=False)) if ":" in client else client
