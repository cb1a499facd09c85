"""Deep checks: our workers are asked regularly for a real completion, and a failed worker must pass one before it gets
requests again."""

import asyncio
import logging
import time
import zlib

from gateway.upstream.client import MemberFailed, WorkerClient
from gateway.upstream.registry import Registry
from router.fleet import Member

_log = logging.getLogger(__name__)

TICK_S = 0.5
EVERY_S = 10.0
"""The interval for a healthy member. A worker that is answering requests proves its health by them, and computes
nothing for the check."""
DEADLINE_S = 10.0
LATE_S = 0.25
"""If a deadline fires later than this, we were slow and not the member."""
MAX_AT_ONCE = 32


class DeepChecks:
    def __init__(self, registry: Registry, client: WorkerClient) -> None:
        self._registry = registry
        self._client = client
        self._next_at: dict[str, float] = {}
        self._under_way: set[str] = set()

    async def check_forever(self) -> None:
        async with asyncio.TaskGroup() as checks:
            while True:
                for member in self._due(time.monotonic()):
                    self._under_way.add(member.worker_id)
                    checks.create_task(self._check(member))
                await asyncio.sleep(TICK_S)

    def _due(self, now: float) -> list[Member]:
        pools = self._registry.fleet.pools.values()
        health = self._registry.health
        members = {
            each.worker_id: each
            for pool in pools
            for each in pool.members
            if each.engine == "tiergate" and (each.is_healthy or health.probe_at(each.worker_id) is not None)
        }
        self._next_at = {
            worker_id: self._next_at.get(worker_id) or now + _spread(worker_id) * EVERY_S for worker_id in members
        }
        due = []
        for worker_id, member in members.items():
            at = health.probe_at(worker_id) or self._next_at[worker_id]
            if now >= at and worker_id not in self._under_way:
                due.append(member)
        return due[: MAX_AT_ONCE - len(self._under_way)]

    async def _check(self, member: Member) -> None:
        worker_id, started_at = member.worker_id, time.monotonic()
        try:
            status, _ = await self._client.get(member.url, "/ready", engine=member.engine, deadline_s=DEADLINE_S)
            reason = None if status == 200 else f"status {status}"
        except MemberFailed as error:
            reason = None if error.is_reachable else str(error)
        finally:
            self._under_way.discard(worker_id)
        now = time.monotonic()
        self._next_at[worker_id] = now + EVERY_S
        if reason is not None and now - started_at > DEADLINE_S + LATE_S:
            return
        if reason is not None:
            _log.info("the deep check of %s failed: %s", worker_id, reason)
        self._registry.note_probe(worker_id, is_ready=reason is None)


def _spread(worker_id: str) -> float:
    """0 to 1, so that the members are not all checked at the same moment."""
    return zlib.crc32(worker_id.encode()) / 2**32
