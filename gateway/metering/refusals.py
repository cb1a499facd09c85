"""Counts refusals before admission, by minute, tenant, key, limit and status.

The counts are kept in memory and handed to the outbox periodically. Not thread-safe: used on one event loop."""

import time
from collections.abc import Callable

from gateway.domain.principal import Principal
from protocol.counts import RefusalCount

_Key = tuple[str, str, str, int]
MAX_KEYS = 20_000
"""Per minute. Beyond it new keys are counted together, so that a flood costs no memory."""


class RefusalCounter:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._minute_s = 0
        self._counts: dict[_Key, int] = {}
        self._told: dict[_Key, int] = {}
        """The current minute's counts as of the last `take`."""
        self._ended: list[RefusalCount] = []

    def count(self, principal: Principal | None, limit: str | None, status: int) -> None:
        """`principal` is None if the key is unknown. `limit`: the error's code, if it has one."""
        now = self._clock()
        # After the clock was set back, refusals count into the current minute: an ended minute's counts are final.
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
        """The counts that changed since the last call, as totals of their minute so far, not as increments."""
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
