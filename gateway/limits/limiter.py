"""Admission: every limit of a request's scopes is reserved in one call, and settled with the actual figures afterwards.

Requests and tokens per minute use a sliding window of small buckets, each of which leaves the window whole, so that no
60 seconds, wherever they begin, see more than the limit (GCRA or fixed windows would let up to twice as much through).
The clock is Redis's. Requests under way are held under their gateway's incarnation, and its single heartbeat is the
lease for all of them. Without Redis this gateway decides alone, within its share of the limits; `docs/limits.md` says
how far that can exceed them.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

from redis.exceptions import RedisError

from gateway.http.errors import Unavailable
from gateway.limits.availability import Availability
from gateway.limits.commands import STEP_PARTS, admit, admit_seeded, close, show
from gateway.limits.floor import LedgerFloor
from gateway.limits.ledger import Ledger, LedgerAway, Readings
from gateway.limits.local import Entry, LocalLimiter, Reading
from gateway.limits.presence import LEASE_S, Presence
from gateway.limits.refusal import refuse, refuse_too_large
from gateway.limits.reservation import Admission, Reservation, has_periods, period_flags
from gateway.limits.scripts import SCRIPTS
from gateway.limits.settlements import Settlement, Settlements
from gateway.limits.standing import Standing
from gateway.limits.telling import Telling
from gateway.limits.usage_now import UsageNow, ask_usage, from_here, from_redis
from gateway.redis_client import AWAY
from gateway.redis_client.connection import Late
from gateway.redis_client.grouping import Call
from gateway.redis_client.pipeline import Pipeline
from gateway.redis_client.resp import Reply

_log = logging.getLogger(__name__)

WINDOW_S = 60.0
PROBE_S = 0.02
ASK_USAGE_S = 10.0
"""How often Redis is asked for the usage of day and month, for the case that it goes away."""
SHOW_PATIENCE_S = 0.25
"""How long a question for what is left waits for the ledger while the last answer still stands."""


class Limiter:
    """Made by `open_limiter`; `run_forever` must run beside it."""

    def __init__(
        self,
        redis: Pipeline,
        ledger: Ledger,
        availability: Availability,
        *,
        incarnation: str,
        window_s: float,
        lease_s: float,
        trouble: asyncio.Event,
        clock: Callable[[], float],
    ) -> None:
        self.redis = redis
        self._availability = availability
        self._window_s = window_s
        self._clock = clock
        self._trouble = trouble
        self._readings = Readings(ledger, clock=clock)
        self.local = LocalLimiter(incarnation=incarnation, window_s=window_s, clock=clock)
        self.presence = Presence(redis, incarnation=incarnation, lease_s=lease_s, clock=clock)
        self.settlements = Settlements(self._send_settlement, is_open=lambda: not availability.is_away)
        self._telling = Telling(redis, self.local, self.presence, self.settlements, clock=clock)
        self.floor = LedgerFloor(redis, self.local, self._readings, clock=clock)
        self._was_alone = False
        """No other request was under way here when the last one asked for admission. If the next one is alone, too, its
        call does not wait for others. A first one's does: after answers that left together, requests come together."""
        self._undecided: set[str] = set()
        """Requests that Redis may have reserved, and that are being decided here."""
        self.num_decided_here = 0
        """How many requests this gateway decided without Redis."""

    async def check_memory(self) -> None:
        """Decide here until Redis has been told everything again, if it has lost its data without having been away: an
        empty one took its place while connections moved one by one. Raises one of AWAY."""
        if await self._telling.is_forgotten():
            self._availability.note_forgotten()

    @property
    def is_local(self) -> bool:
        return self._availability.is_away

    async def admit(self, admission: Admission) -> Reservation:
        """Reserve, or raise LimitReached; or Unavailable if the ledger is needed for a daily or monthly limit and
        cannot be read."""
        self._refuse_too_large(admission)
        if self._availability.is_away:
            return await self._decide_here(admission)
        entry = self.local.enter(admission)
        try:
            call = self._ask(entry)
            reply = await call.future
            if reply[:4] == b"load":  # type: ignore[index]
                reply = await self._ask_again(entry)
        except AWAY as error:
            return await self._decide_after(error, entry)
        except BaseException:
            self._give_back(entry)
            raise
        if reply is None:
            self.local.leave(entry)
            reservation = await self._decide_here(admission)
            # Redis is there, and is told of it afterwards.
            self._trouble.set()
            return reservation
        return self._conclude(entry, reply)

    async def settle(self, reservation: Reservation, *, tokens: int, cost_nanousd: int) -> None:
        """Replace the reservation by the request's actual figures. Does not raise: a failed settlement is sent again
        later."""
        await self.settled(self.settle_soon(reservation, tokens=tokens, cost_nanousd=cost_nanousd))

    def settle_soon(
        self, reservation: Reservation, *, tokens: int, cost_nanousd: int
    ) -> "asyncio.Future[Reply] | None":
        """Like `settle` but without waiting, for use in `finally`. Returns a future for `settled`."""
        entry = reservation.entry
        if not self.local.close(entry, tokens, cost_nanousd):
            return None
        future = self.settlements.put(Settlement(entry, "actual"))
        # A request admitted without Redis has already waited for Redis once.
        return future if entry.is_known else None

    async def settled(self, future: "asyncio.Future[Reply] | None") -> None:
        """Wait until Redis has confirmed the settlement, or is late."""
        if future is not None:
            try:
                await future
            except AWAY:
                self._trouble.set()

    def refund_soon(self, reservation: Reservation) -> None:
        """Give the reservation back, as if there had been no request. Does not wait."""
        if reservation.entry.is_live:
            self._give_back(reservation.entry)

    async def usage_now(self, admission: Admission) -> list[UsageNow]:
        """The current usage of the scopes of `admission`, which stands for a request that is never made; the tenant's
        scope comes first. Raises Unavailable as `admit`."""
        parts: list[bytes] | None = None
        if not self._availability.is_away:
            try:
                command = show(admission, window_us=int(self._window_s * 1e6))
                reply = await self.redis.send(command).future
                assert isinstance(reply, bytes)
                parts = reply.split(b";")
            except AWAY:
                self._trouble.set()
        readings = await self._read(admission, partial(self._readings.get, patience_s=SHOW_PATIENCE_S))
        scopes, accounts = admission.scopes(), self.local.accounts_of(admission)
        if parts is None:
            now = self._clock()
            return [
                from_here(account, readings.get(scope.name), window_s=self._window_s, now=now)
                for scope, account in zip(scopes, accounts, strict=True)
            ]
        return [from_redis(part, readings.get(scope.name)) for scope, part in zip(scopes, parts, strict=True)]

    async def start(self) -> None:
        """Try once to use Redis. If Redis does not answer, `run_forever` keeps trying."""
        await self.redis.connect()
        try:
            await self._return()
        except AWAY as error:
            _log.warning("Redis is away, limits are local: %r", error)

    def close(self) -> None:
        self._readings.close()
        self.redis.close()

    async def run_forever(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.redis.keep_forever())
            group.create_task(self._watch_forever())
            group.create_task(self.floor.keep_forever())

    def without_known(self, held: Mapping[str, str]) -> dict[str, str]:
        """Of the records that Redis holds for this gateway, by request id, those of requests that it does not know."""
        others = {
            request_id: record
            for request_id, record in held.items()
            if request_id not in self.local.live and request_id not in self._undecided
        }
        settled = self.settlements.request_ids() if others else set()
        return {request_id: record for request_id, record in others.items() if request_id not in settled}

    def tell_anew(self) -> None:
        """Tell Redis all requests under way again: other gateways took this one for dead, and may have given them
        back."""
        self._telling.doubt()
        self._trouble.set()

    def _refuse_too_large(self, admission: Admission) -> None:
        limit = admission.tier.tokens_per_minute
        if admission.inner_scopes or (limit is not None and admission.tokens > limit):
            for scope in admission.scopes():
                limit = scope.limits.tokens_per_minute
                if limit is not None and admission.tokens > limit:
                    raise refuse_too_large(admission, scope, Standing(0, 0, 0, is_local=self.is_local))

    def _ask(self, entry: Entry) -> Call:
        account, admission = entry.accounts[0], entry.admission
        self._telling.register(account, admission.tenant_id)
        step = admit(admission.request_id, admission.tokens, admission.cost_nanousd)
        is_alone, was_alone = len(self.local.live) == 1, self._was_alone
        self._was_alone = is_alone
        at_once = is_alone and was_alone
        return self.redis.send_step(entry.terms.group, step, STEP_PARTS, order=account.order, at_once=at_once)

    async def _ask_again(self, entry: Entry) -> Reply:
        """Ask again with figures from the ledger, because Redis lacks the usage of this day or month. None: the ledger
        takes too long, or fails, and the request can be decided here by an older answer."""
        admission = entry.admission
        try:
            # Redis builds upon this reading for the rest of the month, so it must be fresh.
            readings = await self._read(admission, partial(self._readings.get_fresh, is_patient=False))
        except Unavailable:
            return None
        used = [
            (readings[scope.name].tokens_today, readings[scope.name].spent_this_month)
            if scope.name in readings
            else (0, 0)
            for scope in admission.scopes()
        ]
        steps, num_parts = admit_seeded(admission, used), STEP_PARTS * (2 + len(used))
        return await self.redis.send_step(entry.terms.group, steps, num_parts, order=entry.accounts[0].order).future

    def _conclude(self, entry: Entry, reply: Reply) -> Reservation:
        assert isinstance(reply, bytes)
        verdict, number, retry_us, num_requests, num_tokens, reset_us = reply.split()
        standing = Standing(int(num_requests), int(num_tokens), int(reset_us) / 1e6, is_local=False)
        if verdict != b"ok":
            self.local.leave(entry)
            scope = entry.admission.scopes()[int(number) - 1]
            raise refuse(entry.admission, scope, standing, verdict.decode(), retry_after_s=int(retry_us) / 1e6)
        self.local.note_known(entry)
        account = entry.accounts[-1]
        if entry.terms.has_periods and entry.at - account.asked_at >= ASK_USAGE_S:
            account.asked_at = entry.at
            ask_usage(self.redis, entry, window_us=int(self._window_s * 1e6))
        return Reservation(entry.admission, standing, entry)

    async def _decide_after(self, error: BaseException, asked: Entry) -> Reservation:
        """Decide locally, because Redis did not answer in time. Redis may have reserved, or may do so later."""
        self._telling.forget_registrations()
        self._trouble.set()
        learned: list[Reply | RedisError] = []
        call = error.call if isinstance(error, Late) else None
        if call is not None:
            call.then = learned.append
        self.local.leave(asked)
        self._undecided.add(asked.admission.request_id)
        try:
            reservation = await self._decide_here(asked.admission)
        except BaseException:
            self.settlements.put(Settlement(asked, "refund"))
            raise
        finally:
            self._undecided.discard(asked.admission.request_id)
        if call is not None:
            call.then = partial(self._learn, reservation.entry)
            for outcome in learned:
                call.then(outcome)
        return reservation

    async def _decide_here(self, admission: Admission) -> Reservation:
        self.num_decided_here += 1
        # First the checks that cost nothing, so that a flood of requests does not become a flood of ledger reads.
        self.local.check(admission, {})
        # After each reading, so that a tenant without room does not have the ledger read for its end users; and after
        # the last await, so that two requests cannot both see the same room.
        await self._read(admission, self._readings.get, check=partial(self.local.check, admission))
        entry = self.local.enter(admission)
        self.local.untold[admission.request_id] = entry
        return Reservation(admission, self.local.standing(entry.accounts[0]), entry)

    def _learn(self, entry: Entry, outcome: Reply | RedisError) -> None:
        """Take the late answer to a request that was admitted here meanwhile."""
        if isinstance(outcome, bytes) and outcome.startswith(b"ok"):
            self.local.note_known(entry)
            self.local.untold.pop(entry.admission.request_id, None)

    async def _read(
        self,
        admission: Admission,
        get: Callable[..., Awaitable[Reading]],
        *,
        check: Callable[[dict[str, Reading]], None] | None = None,
    ) -> dict[str, Reading]:
        """Readings by scope name, for the scopes with a daily or monthly limit. check: called after each."""
        scopes = [scope for scope in admission.scopes() if has_periods(scope.limits)]
        if not scopes:
            return {}
        accounts = dict(
            zip((scope.name for scope in admission.scopes()), self.local.accounts_of(admission), strict=True)
        )
        for scope in scopes:
            told = accounts[scope.name].told
            if told is not None and told.counted != period_flags(scope.limits):
                # A limit was set since, for which nothing is known.
                accounts[scope.name].told = None
        readings = {}
        for scope in scopes:
            try:
                reading = await get(admission.tenant_id, scope.name, accounts[scope.name], admission.now)
            except LedgerAway as error:
                message = "what is left of your quota cannot be checked at the moment"
                raise Unavailable(message, retry_after_s=5) from error
            readings[scope.name] = reading
            if check is not None:
                check(readings)
        return readings

    def _give_back(self, entry: Entry) -> None:
        self.local.leave(entry)
        self.settlements.put(Settlement(entry, "refund"))

    def _send_settlement(self, settlement: Settlement) -> "asyncio.Future[Reply]":
        entry = settlement.entry
        if settlement.outcome == "actual" and not entry.is_known:
            return self._telling.tell(entry).future
        step = close(entry.admission.request_id, entry.tokens, entry.cost_nanousd, settlement.outcome)
        return self.redis.send_step(entry.terms.group, step, STEP_PARTS, order=entry.accounts[0].order).future

    async def _watch_forever(self) -> None:
        """While something is wrong: probe Redis, tell it the requests it does not know, and return to it once it is
        back."""
        while True:
            await self._trouble.wait()
            self._trouble.clear()
            while not self._availability.is_calm or self.local.untold:
                self.redis.probe()
                await asyncio.sleep(PROBE_S)
                try:
                    if self._availability.can_return:
                        await self._return()
                        self.floor.doubt()
                    elif not self._availability.is_away:
                        await self._telling.tell_untold()
                except AWAY as error:
                    _log.debug("not back yet: %r", error)

    async def _return(self) -> None:
        """Tell Redis everything that it does not know, then use it again. Raises one of AWAY."""
        await self._telling.catch_up()
        # All in one iteration of the event loop, so that these reports precede any new request in the pipeline.
        self._telling.send_untold()
        self.settlements.send_all()
        self._availability.note_returned()
        _log.info("limits are decided by Redis")


@asynccontextmanager
async def open_limiter(
    url: str,
    ledger: Ledger,
    *,
    deadline_s: float,
    incarnation: str | None = None,
    window_s: float = WINDOW_S,
    lease_s: float = LEASE_S,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Limiter]:
    """Yields a limiter that has tried once to reach Redis."""
    trouble = asyncio.Event()
    availability = Availability(clock, on_trouble=trouble.set, on_away=lambda: redis.give_up())
    redis = Pipeline(url, deadline_s=deadline_s, scripts=SCRIPTS, watch=availability)
    limiter = Limiter(
        redis,
        ledger,
        availability,
        incarnation=incarnation or uuid4().hex,
        window_s=window_s,
        lease_s=lease_s,
        trouble=trouble,
        clock=clock,
    )
    try:
        await limiter.start()
        yield limiter
    finally:
        limiter.close()
