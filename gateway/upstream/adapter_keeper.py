"""Keeps stored adapters and workers in step: checks which adapter fits which model, and unloads and removes unused
ones."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from gateway.artifacts.store import ArtifactStore
from gateway.clock import utc_now
from gateway.database import Sessions
from gateway.domain.adapters.upkeep import KEPT_UNUSED, remove_unused, settle_pending
from gateway.domain.catalog import REFRESH_S, CatalogCache
from gateway.domain.webhooks.service import hold_lease
from gateway.http.errors import GatewayError
from gateway.upstream.client import MemberFailed, MemberRefused, WorkerClient
from gateway.upstream.registry import Registry
from protocol.artifacts import digest_of
from protocol.load import AdapterBase
from router.fleet import Fleet, Member

_log = logging.getLogger(__name__)

ROUND_S = 0.5
TIDY_S = 60.0
LEASE = timedelta(seconds=90)
FORGOTTEN_AFTER_S = 2 * REFRESH_S
"""An adapter must be unknown for this long before it is unloaded: another gateway may have registered it, and our
catalog may not know it yet."""
UNLOAD_DEADLINE_S = 10.0


class AdapterKeeper:
    def __init__(
        self,
        sessions: Sessions,
        store: ArtifactStore,
        catalog: CatalogCache,
        registry: Registry,
        workers: WorkerClient,
        *,
        holder: str,
        request_timeout_s: float,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._catalog = catalog
        self._registry = registry
        self._workers = workers
        self._holder = holder
        self._kept_for = max(KEPT_UNUSED, timedelta(seconds=1.5 * request_timeout_s))
        self._strays: dict[tuple[str, str], float] = {}
        """(worker id, adapter's name there) -> since when the catalog has no adapter of that name."""
        self._tidy_at = 0.0

    async def keep_forever(self) -> None:
        while True:
            try:
                await self.settle()
                await self.unload_strays()
                await self.tidy()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                _log.warning("cannot keep the adapters up to date: %s", error)
            except GatewayError as error:
                _log.warning("%s", error.message)
            await asyncio.sleep(ROUND_S)

    async def settle(self) -> None:
        """Check pending variants against the workers' base models, and mark them ready or refused."""
        bases = adapter_bases(self._registry.fleet)
        pending = [adapter for adapter in self._catalog.current.adapters.values() if adapter.is_pending]
        waiting = {model for adapter in pending for model in adapter.unready}
        known = {model: base for model, base in bases.items() if model in waiting}
        if known and await settle_pending(self._sessions, known, now=utc_now()):
            await self._catalog.reload()
            self._registry.redraw()

    async def unload_strays(self) -> None:
        """Unload deleted and replaced adapters from workers. A worker lets requests under way finish first."""
        catalog, now = self._catalog.current, time.monotonic()
        known = {name for adapter in catalog.adapters.values() for name in adapter.variants.values()}
        strays = {
            (member.worker_id, name): member
            for member in _own_members(self._registry.fleet)
            for name in (member.load.adapters if member.load is not None else ())
            if name not in known and digest_of(name) is not None
        }
        self._strays = {stray: self._strays.get(stray, now) for stray in strays}
        due = [stray for stray, since in self._strays.items() if now - since > FORGOTTEN_AFTER_S]
        if due and self._catalog.read_at <= max(self._strays[stray] for stray in due):
            # The catalog has not been read since, so the database may be away and the adapter may exist by now.
            return
        await asyncio.gather(*(self._unload(strays[stray], stray[1]) for stray in due))

    async def tidy(self) -> None:
        now = time.monotonic()
        if now < self._tidy_at:
            return
        self._tidy_at = now + TIDY_S
        if await hold_lease(self._sessions, "adapters", self._holder, now=utc_now(), lasts=LEASE):
            await remove_unused(self._sessions, self._store, now=utc_now(), kept_for=self._kept_for)
            await self._store.remove_abandoned(now=utc_now())

    async def _unload(self, member: Member, name: str) -> None:
        body = msgspec.json.encode({"lora_name": name})
        try:
            async with asyncio.timeout(UNLOAD_DEADLINE_S):
                answer = await self._workers.post(member, "/v1/unload_lora_adapter", body, {})
                try:
                    await answer.read()
                finally:
                    answer.close()
        except (MemberFailed, MemberRefused, TimeoutError) as error:
            # Either another gateway has unloaded it already, or the next round tries again.
            _log.debug("%s keeps %s: %s", member.worker_id, name, error)


def adapter_bases(fleet: Fleet) -> Mapping[str, AdapterBase]:
    """Base model descriptions by model id, as reported by the pool's first worker: all replicas serve one model."""
    return {
        pool.model_id: base
        for pool in fleet.pools.values()
        for member in reversed(pool.members)
        if member.load is not None and (base := member.load.adapter_base) is not None
    }


def _own_members(fleet: Fleet) -> Iterator[Member]:
    for pool in fleet.pools.values():
        for member in pool.members:
            if member.engine == "tiergate" and member.is_healthy:
                yield member
