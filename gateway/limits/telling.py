"""Tells Redis the requests that this gateway admitted without it, or that Redis has lost. Each counts once, at its own
time."""

import asyncio
import logging
import time
from collections.abc import Callable
from uuid import UUID

from gateway.limits.commands import TELL_PARTS, Counting
from gateway.limits.local import NEW_IN_LEDGER_S, Account, Entry, LocalLimiter
from gateway.limits.presence import Presence
from gateway.limits.settlements import BATCH, Settlement, Settlements
from gateway.redis_client.connection import ignore_outcome, is_our_fault
from gateway.redis_client.grouping import Call
from gateway.redis_client.pipeline import Pipeline
from gateway.redis_client.resp import Reply

_log = logging.getLogger(__name__)

POLL_S = 0.05


class Telling:
    def __init__(
        self,
        redis: Pipeline,
        local: LocalLimiter,
        presence: Presence,
        settlements: Settlements,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._local = local
        self._presence = presence
        self._settlements = settlements
        self._clock = clock
        self._registration = 0
        self._generation: bytes | None = None
        self._remembers_since = float("-inf")

    def register(self, account: Account, tenant_id: UUID) -> None:
        """Called before the first command for a tenant, so that a gateway that buries this one finds what it holds."""
        if account.registration != self._registration:
            call = self._redis.send(self._presence.registration_of(tenant_id), order=account.order)
            call.future.add_done_callback(ignore_outcome)
            account.registration = self._registration

    def forget_registrations(self) -> None:
        """Register every tenant again, because earlier registrations may not have arrived or may be gone."""
        self._registration += 1

    def doubt(self) -> None:
        """Mark all requests under way as untold, because other gateways may have taken this one for dead and given them
        back. A request that Redis is being asked for is none yet: told as well, it would stand in its own way."""
        self.forget_registrations()
        for request_id, entry in self._local.live.items():
            if entry.is_known:
                self._local.note_known(entry, is_known=False)
                self._local.untold[request_id] = entry

    def tell(self, entry: Entry) -> Call:
        """Raises Lost."""
        self.register(entry.accounts[0], entry.admission.tenant_id)
        now = self._clock()
        step = entry.terms.tell(
            entry.admission.request_id,
            entry.tokens,
            entry.cost_nanousd,
            age_s=max(0.0, now - entry.at),
            ended_s=None if entry.is_live else max(0.0, now - entry.closed_at),
            counting=self._counting(entry, now),
        )
        return self._redis.send_step(entry.terms.tell_group, step, TELL_PARTS, order=entry.accounts[0].order)

    def send_untold(self) -> list["asyncio.Future[Reply]"]:
        """Tell Redis all requests under way that it does not know, without waiting for answers. Raises Lost."""
        return [self._tell_live(entry) for entry in list(self._local.untold.values())]

    async def tell_untold(self) -> None:
        """Tell Redis the requests under way that it does not know now."""
        untold = list(self._local.untold)
        for first in range(0, len(untold), BATCH):
            batch = [self._local.untold.get(request_id) for request_id in untold[first : first + BATCH]]
            await asyncio.gather(*(self._tell_live(entry) for entry in batch if entry is not None))

    async def catch_up(self) -> None:
        """Returns once Redis knows nearly everything; requests that come meanwhile are left. Raises one of AWAY."""
        has_forgotten = await self._note_generation()
        # Redis may have come back with an older state. What it still holds does not count twice.
        self.doubt()
        await self._tell_everything()
        beat = await self._presence.beat()
        if has_forgotten:
            await self._wait_for_others(beat.num_alive)
            return
        self._local.num_gateways = max(1, beat.num_alive)
        if not beat.was_alive:
            self.doubt()
            await self.tell_untold()

    async def is_forgotten(self) -> bool:
        """Whether Redis has lost what this gateway once told it. Raises one of AWAY."""
        return self._generation is not None and await self._presence.generation() != self._generation

    async def _tell_everything(self) -> None:
        """Until no more than a batch is left, or as much comes meanwhile as can be told."""
        num_left, num_before = self._num_left(), float("inf")
        while num_left < num_before:
            await self.tell_untold()
            await self._settlements.drain_once(is_forced=True)
            if num_left <= BATCH:
                return
            num_left, num_before = self._num_left(), num_left

    def _num_left(self) -> int:
        return len(self._local.untold) + len(self._settlements)

    async def _note_generation(self) -> bool:
        """Whether Redis has lost what this gateway once told it."""
        generation = await self._presence.generation()
        if generation == self._generation:
            return False
        is_first, self._generation = self._generation is None, generation
        if is_first:
            return False
        self._remembers_since = self._clock()
        _log.warning("Redis has lost its memory, it is told what is known here")
        for entry in self._local.forget_memory_of_redis():
            self._settlements.keep(Settlement(entry, "actual"))
        return True

    async def _wait_for_others(self, num_alive: int) -> None:
        """Wait until all gateways have told Redis what they know, or have had the length of a lease to do so. Before
        that, Redis would admit too much."""
        give_up_at = self._clock() + self._presence.lease_s
        while num_alive < self._local.num_gateways and self._clock() < give_up_at:
            await asyncio.sleep(POLL_S)
            await self._tell_everything()
            num_alive = (await self._presence.beat()).num_alive

    def _tell_live(self, entry: Entry) -> "asyncio.Future[Reply]":
        future = self.tell(entry).future
        future.add_done_callback(lambda done: self._note_told(entry, done))
        return future

    def _note_told(self, entry: Entry, done: "asyncio.Future[Reply]") -> None:
        error = None if done.cancelled() else done.exception()
        request_id = entry.admission.request_id
        if is_our_fault(error):
            _log.error("Redis does not take the request %s: %s", request_id, error)
        elif done.cancelled() or error is not None:
            return
        self._local.note_known(entry, is_known=error is None)
        if self._local.untold.get(request_id) is entry:
            del self._local.untold[request_id]

    def _counting(self, entry: Entry, now: float) -> Counting:
        """Whether the request counts on day and month. It must not count twice if the ledger was or will be read after
        the request ended."""
        if now - entry.closed_at < NEW_IN_LEDGER_S:
            return "always"
        return "never" if entry.closed_at < self._remembers_since else "seeded"
