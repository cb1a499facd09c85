"""Admission: every limit of a tenant reserved in one round trip, settled with the actual figures afterwards.

Requests and tokens a minute: an exact sliding-window log (each admission with its time in a sorted set, after
"Better rate limiting with Redis sorted sets", ClassDojo 2016), so that no 60 seconds, wherever they begin, see
more than the limit; a GCRA or fixed windows would let up to twice as much through. Time is Redis'.
Concurrency: a lease a request, which its gateway prolongs and which expires with it.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from gateway.http.errors import Unavailable
from gateway.limits.ledger import Ledger, LedgerAway
from gateway.limits.local import LocalLimiter
from gateway.limits.refusal import refuse, refuse_too_large
from gateway.limits.reservation import Admission, Outcome, Reservation, redis_keys
from gateway.limits.scripts import Script
from gateway.limits.settlements import Settlement, Settlements
from gateway.limits.standing import Standing
from gateway.redis_client import AWAY

_log = logging.getLogger(__name__)

WINDOW_S = 60.0
LEASE_S = 15.0
PROBE_S = 1.0
"""How long Redis is left alone after it failed, so that an outage does not cost every request its deadline."""


class Limiter:
    def __init__(
        self,
        redis: "Redis",
        ledger: Ledger,
        *,
        deadline_s: float,
        window_s: float = WINDOW_S,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._window_us, self._lease_us = int(window_s * 1e6), int(lease_s * 1e6)
        self._admit = Script(redis, "admit", deadline_s=deadline_s)
        self._settle = Script(redis, "settle", deadline_s=deadline_s)
        self._clock = clock
        self._away_until = float("-inf")
        self.local = LocalLimiter(window_s=window_s)
        self.settlements = Settlements(self._settle_now)

    @property
    def is_local(self) -> bool:
        return self._clock() < self._away_until

    async def admit(self, admission: Admission) -> Reservation:
        """Reserve, or raise LimitReached; Unavailable when a budget is set and nobody can say what is left of it."""
        limit = admission.tier.tokens_per_minute
        if limit is not None and admission.tokens > limit:
            raise refuse_too_large(admission, Standing(0, 0, 0, is_local=self.is_local))
        keys = redis_keys(admission.tenant_id, admission.now)
        if self.is_local:
            return await self._admit_locally(admission, keys)
        try:
            return await self._admit_in_redis(admission, keys)
        except asyncio.CancelledError:
            self._refund_perhaps(admission, keys)
            raise
        except AWAY as error:
            self._note_away(error)
        try:
            return await self._admit_locally(admission, keys)
        except BaseException:
            self._refund_perhaps(admission, keys)
            raise

    async def settle(self, reservation: Reservation, *, tokens: int, cost_nanousd: int) -> None:
        """Replace the reservation by what the request came to. Does not raise: what fails is sent again later."""
        settlement = self._settlement(reservation, tokens, cost_nanousd, "actual")
        is_sent = False
        try:
            is_sent = await self._settle_now(settlement)
        finally:
            if not is_sent:
                self.settlements.put(settlement)

    def settle_soon(self, reservation: Reservation, *, tokens: int, cost_nanousd: int) -> None:
        """The same without waiting, for `finally`."""
        self.settlements.put(self._settlement(reservation, tokens, cost_nanousd, "actual"))

    def refund_soon(self, reservation: Reservation) -> None:
        """As if the request had never been."""
        self.settlements.put(self._settlement(reservation, 0, 0, "refund"))

    def _refund_perhaps(self, admission: Admission, keys: tuple[str, ...]) -> None:
        """Redis may have reserved, or will once it reads what we sent; a refund of nothing does nothing."""
        self.settlements.put(Settlement(keys, admission.request_id, 0, 0, "refund"))

    async def _admit_in_redis(self, admission: Admission, keys: tuple[str, ...]) -> Reservation:
        reply = await self._call_admit(admission, keys, "", "")
        if reply[0] == b"load":
            day, month = await self._used(admission)
            reply = await self._call_admit(admission, keys, str(day), str(month))
        verdict, retry_us, num_requests, reset_us, num_tokens, *_ = reply
        standing = Standing(num_requests, num_tokens, reset_us / 1e6, is_local=False)
        if verdict != b"ok":
            raise refuse(admission, standing, verdict.decode(), retry_after_s=retry_us / 1e6)
        self.local.note(admission)
        return Reservation(admission, standing, keys)

    async def _call_admit(self, admission: Admission, keys: tuple[str, ...], day: str, month: str) -> list[Any]:
        tier = admission.tier
        limits = (
            tier.requests_per_minute,
            tier.tokens_per_minute,
            tier.concurrency,
            tier.tokens_per_day,
            tier.budget_nanousd_per_month,
        )
        reply: list[Any] = await self._admit.call(
            keys,
            admission.request_id,
            admission.tokens,
            admission.cost_nanousd,
            self._window_us,
            self._lease_us,
            *("" if limit is None else limit for limit in limits),
            day,
            month,
            f"{keys[4]} {keys[5]}",
        )
        return reply

    async def _admit_locally(self, admission: Admission, keys: tuple[str, ...]) -> Reservation:
        tier = admission.tier
        if tier.tokens_per_day is not None or tier.budget_nanousd_per_month is not None:
            used_day, used_month = await self._used(admission)
            # After the only await, so that two requests cannot both see the same room.
            tokens, cost_nanousd = self.local.reserved(admission.tenant_id)
            standing = Standing(0, 0, 0, is_local=True)
            if tier.tokens_per_day is not None and used_day + tokens + admission.tokens > tier.tokens_per_day:
                raise refuse(admission, standing, "tokens_per_day", retry_after_s=0)
            budget = tier.budget_nanousd_per_month
            if budget is not None and used_month + cost_nanousd + admission.cost_nanousd > budget:
                raise refuse(admission, standing, "budget", retry_after_s=0)
        return Reservation(admission, self.local.admit(admission), keys)

    async def _used(self, admission: Admission) -> tuple[int, int]:
        """Tokens of this day and cost of this month, as far as there are limits on them."""
        tenant_id, tier, now = admission.tenant_id, admission.tier, admission.now
        try:
            day = 0 if tier.tokens_per_day is None else await self._ledger.tokens_today(tenant_id, now)
            if tier.budget_nanousd_per_month is None:
                return day, 0
            return day, await self._ledger.spent_this_month(tenant_id, now)
        except LedgerAway as error:
            message = "what is left of your quota cannot be checked at the moment"
            raise Unavailable(message, retry_after_s=5) from error

    def _settlement(self, reservation: Reservation, tokens: int, cost_nanousd: int, outcome: Outcome) -> Settlement:
        self.local.release(reservation.admission)
        if reservation.standing.is_local and outcome == "actual":
            outcome = "late"
        return Settlement(reservation.keys, reservation.admission.request_id, tokens, cost_nanousd, outcome)

    async def _settle_now(self, settlement: Settlement) -> bool:
        """False: Redis is away, keep it."""
        if self.is_local:
            return False
        try:
            await self._settle.call(
                settlement.keys, settlement.request_id, settlement.tokens, settlement.cost_nanousd, settlement.outcome
            )
        except AWAY as error:
            self._note_away(error)
            return False
        return True

    def _note_away(self, error: BaseException) -> None:
        if not self.is_local:
            _log.warning("Redis is away, limits are local at a share of 1/%d: %r", self.local.num_gateways, error)
        self._away_until = self._clock() + PROBE_S
