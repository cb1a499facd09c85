"""Counts refusals before admission, by minute, tenant, key, limit and status: in memory, and from time to time told to
the outbox. On one event loop."""

import time
from collections.abc import Callable

from gateway.domain.principal import Principal
from protocol.counts import RefusalCount

_Key = tuple[str, str, str, int]
MAX_KEYS = 20_000
"""In a minute; beyond it keys are not told apart, so that a flood costs no memory."""


class RefusalCounter:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._minute_s = 0
        self._counts: dict[_Key, int] = {}
        self._told: dict[_Key, int] = {}
        """Of this minute, as last taken."""
        self._ended: list[RefusalCount] = []

    def count(self, principal: Principal | None, limit: str | None, status: int) -> None:
        """`principal` None: the key is not known. `limit`: the error's code, where it has one."""
        now = self._clock()
        # A clock that was set back counts into the minute that is there: a minute that ended has been told for good.
        if now >= self._minute_s + 60:
            self._turn(int(now) // 60 * 60)
        limit = limit or "invalid_request"
        key = (
            ("", "", limit, status) if principal is None else (principal.tenant_text, principal.key_text, limit, status)
        )
        counts = self._counts
        if key in counts:
            counts[key] += 1
        elif len(counts) < MAX_KEYS:
            counts[key] = 1
        else:
            key = ("", "", limit, status)
            counts[key] = counts.get(key, 0) + 1

    def take(self) -> list[RefusalCount]:
        """What changed since the last time: counts so far, not what came on top."""
        taken, self._ended = self._ended + self._news(), []
        self._told = dict(self._counts)
        return taken

    def _turn(self, minute_s: int) -> None:
        self._ended += self._news()
        self._minute_s = minute_s
        self._counts, self._told = {}, {}

    def _news(self) -> list[RefusalCount]:
        told = self._told
        return [
            RefusalCount(self._minute_s, *key, count) for key, count in self._counts.items() if told.get(key) != count
        ]
