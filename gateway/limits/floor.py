"""Keeps what Redis counts for a day or month from staying below what the usage ledger knows.

Redis may lack usage: it came back with an older state than it had (from a snapshot, or as a replica that lagged
behind), or a gateway ended before it could settle what it had admitted without Redis. Whatever ended a minute ago must
be counted in Redis, because it is settled while its usage event is written. So the ledger's figures are read, and a
minute later Redis's are raised to these.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from random import random
from typing import NamedTuple
from uuid import UUID

from gateway.clock import utc_now
from gateway.limits.commands import raise_to
from gateway.limits.ledger import LedgerAway, Readings
from gateway.limits.local import Account, LocalLimiter
from gateway.redis_client import AWAY
from gateway.redis_client.connection import is_our_fault
from gateway.redis_client.pipeline import Pipeline

_log = logging.getLogger(__name__)

LOOK_S = 600.0
SETTLED_S = 60.0
"""How long ago a request must have ended to be settled in Redis, unless Redis was away. What is told to Redis later is
first set off against what was raised."""


_RAISED = "Redis had counted %d tokens and %d nano-dollars too few for %s of %s"


class Look(NamedTuple):
    tenant_id: UUID
    scope: str
    account: Account
    now: datetime
    tokens_today: int
    spent_this_month: int
    read_at: float

    def at_most(self, other: "Look") -> "Look":
        return self._replace(
            tokens_today=min(self.tokens_today, other.tokens_today),
            spent_this_month=min(self.spent_this_month, other.spent_this_month),
        )


class LedgerFloor:
    def __init__(
        self, redis: Pipeline, local: LocalLimiter, readings: Readings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis = redis
        self._clock = clock
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
            closed = account.closed_tokens, account.closed_nanousd
            is_due = account.looked_at != closed and random() * self._local.num_gateways < 1
            if is_in_doubt or is_due:
                look = await self._look_at(tenant_id, scope, account, now)
                if look is not None:
                    account.looked_at = closed
                    looks.append(look)
                elif is_in_doubt:
                    self.doubt()
        return looks

    async def _look_at(self, tenant_id: UUID, scope: str, account: Account, now: datetime) -> Look | None:
        """None if the ledger cannot be read."""
        try:
            reading = await self._readings.get_fresh(tenant_id, scope, account, now)
        except LedgerAway:
            return None
        except Exception:
            _log.exception("cannot compare %s of %s with the ledger", scope, tenant_id)
            return None
        return Look(tenant_id, scope, account, now, reading.tokens_today, reading.spent_this_month, reading.read_at)

    async def hold(self, looks: Sequence[Look]) -> None:
        """Raise Redis's figures to those of `looks`, which must be SETTLED_S old.

        The ledger may have counted events twice that were on their way into ClickHouse. So where Redis seems to lack
        usage the ledger is read once more, and the lesser figures hold: what was on its way has arrived by now."""
        for look in looks:
            try:
                if any(await self._raise(look, is_trial=True)):
                    again = await self._look_at(look.tenant_id, look.scope, look.account, look.now)
                    if again is None:
                        self.doubt()
                        continue
                    tokens, nanousd = await self._raise(look.at_most(again), is_trial=False)
                    if tokens or nanousd:
                        _log.warning(_RAISED, tokens, nanousd, look.scope, look.tenant_id)
            except AWAY as error:
                if is_our_fault(error):
                    _log.error("cannot compare %s of %s with the ledger: %s", look.scope, look.tenant_id, error)
                    continue
                self.doubt()
                return

    async def _raise(self, look: Look, *, is_trial: bool) -> tuple[int, int]:
        """The tokens and the cost that Redis lacked. Raises one of AWAY."""
        command = raise_to(
            look.tenant_id,
            look.scope,
            look.now,
            tokens=look.tokens_today,
            cost_nanousd=look.spent_this_month,
            age_s=self._clock() - look.read_at,
            is_trial=is_trial,
        )
        reply = await self._redis.send(command, order=look.tenant_id.int & 0xFF).future
        assert isinstance(reply, bytes)
        tokens, nanousd = map(int, reply.split())
        return tokens, nanousd
