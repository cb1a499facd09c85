"""Keeps what Redis counts for a day or month from staying below what the usage ledger knows.

Redis may lack usage: it came back with an older state than it had (from a snapshot, or as a replica that lagged
behind), or a gateway ended before it could settle what it had admitted without Redis. Whatever ended a minute ago must
be counted in Redis, because it is settled while its usage event is written. So the ledger's figures are read, and a
minute later Redis's are raised to these.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from random import random
from typing import NamedTuple
from uuid import UUID

from gateway.clock import utc_now
from gateway.limits.commands import raise_to
from gateway.limits.ledger import LedgerAway, Readings
from gateway.limits.local import LocalLimiter
from gateway.redis_client import AWAY
from gateway.redis_client.pipeline import Pipeline

_log = logging.getLogger(__name__)

LOOK_S = 600.0
SETTLED_S = 60.0
"""How long ago a request must have ended to be settled in Redis, unless Redis was away. What is told to Redis later is
first set off against what was raised."""


class Look(NamedTuple):
    tenant_id: UUID
    scope: str
    now: datetime
    tokens_today: int
    spent_this_month: int


class LedgerFloor:
    def __init__(self, redis: Pipeline, local: LocalLimiter, readings: Readings) -> None:
        self._redis = redis
        self._local = local
        self._readings = readings
        self._doubt = asyncio.Event()

    def doubt(self) -> None:
        """Compare everything soon, because Redis may have come back with an older state."""
        self._doubt.set()

    async def keep_forever(self) -> None:
        looked_at = time.monotonic()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(looked_at + LOOK_S - time.monotonic()):
                    await self._doubt.wait()
            is_in_doubt, looked_at = self._doubt.is_set(), time.monotonic()
            self._doubt.clear()
            looks = await self.look(utc_now(), is_in_doubt=is_in_doubt)
            await asyncio.sleep(SETTLED_S)
            await self.hold(looks)

    async def look(self, now: datetime, *, is_in_doubt: bool) -> list[Look]:
        """Read the ledger for all scopes, or for a share of those with requests that ended since the last look: each
        gateway takes its share at random. One at a time, so that requests do not wait behind a crowd of questions."""
        looks = []
        for tenant_id, scope, account in self._local.periods():
            is_due = account.looked_at_tokens != account.closed_tokens and random() * self._local.num_gateways < 1
            if is_in_doubt or is_due:
                account.looked_at_tokens = account.closed_tokens
                with suppress(LedgerAway):
                    reading = await self._readings.get_fresh(tenant_id, scope, account, now)
                    looks.append(Look(tenant_id, scope, now, reading.tokens_today, reading.spent_this_month))
        return looks

    async def hold(self, looks: Sequence[Look]) -> None:
        """Raise Redis's figures to those of `looks`, which must be SETTLED_S old."""
        for look in looks:
            command = raise_to(
                look.tenant_id, look.scope, look.now, tokens=look.tokens_today, cost_nanousd=look.spent_this_month
            )
            try:
                reply = await self._redis.send(command, order=look.tenant_id.int & 0xFF).future
            except AWAY:
                # On the way back everything is in doubt, and looked at again.
                return
            assert isinstance(reply, bytes)
            tokens, nanousd = map(int, reply.split())
            if tokens or nanousd:
                _log.warning(
                    "Redis had counted %d tokens and %d nano-dollars too few for %s of %s",
                    tokens,
                    nanousd,
                    look.scope,
                    look.tenant_id,
                )
