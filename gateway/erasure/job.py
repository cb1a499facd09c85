"""Carries out erasures step by step: in the one gateway process with the lease, from where the last one stopped."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.exc import SQLAlchemyError

from gateway.clock import utc_now
from gateway.domain.audit.writing import NewEntry, append
from gateway.domain.erasures.models import Erasure
from gateway.domain.webhooks.service import hold_lease
from gateway.erasure.audit_rows import erase_audit_rows
from gateway.erasure.disk import scrub_files
from gateway.erasure.objects import remove_adapters, remove_files
from gateway.erasure.outboxes import empty_outboxes
from gateway.erasure.proof import look_everywhere
from gateway.erasure.redis_keys import forget_keys, forget_sessions
from gateway.erasure.report import seal_report
from gateway.erasure.rows import remove_rows
from gateway.erasure.subject import Counts, Stores, Subject, Waits, late_subject, subject_of
from gateway.erasure.usage import anonymise_usage, move_late_usage
from gateway.erasure.work import end_batches, let_requests_end

_log = logging.getLogger(__name__)

ROUND_S = 1.0
LEASE = timedelta(seconds=15)
LOOK_AGAIN_EVERY = timedelta(hours=1)
LATE = timedelta(days=30)
"""How long after an erasure late usage may still come from a gateway or a topic that was away."""
Step = Callable[[Stores, Subject], Awaitable[Counts]]
STEPS: dict[str, Step] = {
    "requests": let_requests_end,
    "batches": end_batches,
    "outboxes": empty_outboxes,
    "sessions": forget_sessions,
    "usage": anonymise_usage,
    "redis": forget_keys,
    "files": remove_files,
    "adapters": remove_adapters,
    "database": remove_rows,
    "audit": erase_audit_rows,
    "disk": scrub_files,
    "proof": look_everywhere,
}


class ErasureRunner:
    def __init__(self, stores: Stores, *, holder: str, reload: Callable[[], Awaitable[None]]) -> None:
        """reload: makes all gateways read again who may send requests."""
        self._stores = stores
        self._holder = holder
        self._reload = reload

    async def run_forever(self) -> None:
        while True:
            try:
                if await self._holds_lease():
                    await self._round()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                _log.warning("erasures wait for the database: %s", error)
            await asyncio.sleep(ROUND_S)

    async def _round(self) -> None:
        """Renews the lease meanwhile. If the lease is lost, the round ends, and its step is repeated elsewhere."""
        keeping = asyncio.create_task(self._keep_lease())
        working = asyncio.create_task(self._carry_out_all())
        try:
            await asyncio.wait((keeping, working), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (keeping, working):
                task.cancel()
            await asyncio.gather(keeping, working, return_exceptions=True)
        if not working.cancelled():
            working.result()

    async def _carry_out_all(self) -> None:
        since = utc_now() - LATE
        is_due = or_(Erasure.looked_again_at.is_(None), Erasure.looked_again_at < utc_now() - LOOK_AGAIN_EVERY)
        async with self._stores.sessions() as session:
            running = list(await session.scalars(select(Erasure.id).where(Erasure.finished_at.is_(None))))
            finished = list(await session.scalars(select(Erasure).where(Erasure.finished_at > since, is_due)))
        for erasure_id in running:
            while await self._advance(erasure_id):
                pass
        for erasure in finished:
            await self._look_again(erasure)

    async def _advance(self, erasure_id: UUID) -> bool:
        """Do the next step. False: it has to wait, or it was the last."""
        async with self._stores.sessions() as session:
            erasure = await session.get(Erasure, erasure_id)
        assert erasure is not None
        done = {step["name"] for step in erasure.steps}
        name = next(name for name in STEPS if name not in done)
        try:
            counts = await STEPS[name](self._stores, subject_of(erasure, peppers=self._stores.peppers))
        except Waits as reason:
            await self._note_waiting(erasure_id, str(reason))
            return False
        except SQLAlchemyError as error:
            await self._note_waiting(erasure_id, f"database: {type(error).__name__} in the step {name}")
            raise
        if name == "proof" and any(counts.values()):
            return await self._begin_again(erasure_id, counts)
        step = {"name": name, "finished_at": utc_now().isoformat(), "counts": counts}
        async with self._stores.sessions.begin() as session:
            kept = await session.get(Erasure, erasure_id)
            assert kept is not None
            kept.steps, kept.waits_for = [*kept.steps, step], None
        if name != "proof":
            return True
        await self._finish(erasure_id, now=utc_now())
        return False

    async def _note_waiting(self, erasure_id: UUID, reason: str) -> None:
        async with self._stores.sessions.begin() as session:
            erasure = await session.get(Erasure, erasure_id)
            if erasure is not None and erasure.waits_for != reason:
                erasure.waits_for = reason

    async def _begin_again(self, erasure_id: UUID, left: Counts) -> bool:
        """New data came meanwhile: every step is done once more."""
        found = ", ".join(f"{store}: {number}" for store, number in left.items() if number)
        async with self._stores.sessions.begin() as session:
            erasure = await session.get(Erasure, erasure_id)
            assert erasure is not None
            erasure.steps, erasure.waits_for = [], f"what was found when looking again ({found})"
        return False

    async def _finish(self, erasure_id: UUID, *, now: datetime) -> None:
        async with self._stores.sessions.begin() as session:
            erasure = await session.get(Erasure, erasure_id)
            assert erasure is not None
            erasure.finished_at = erasure.looked_again_at = now
            erasure.sealed_user = erasure.pseudonym = erasure.salt = None
            seal_report(erasure, pepper=self._stores.peppers.current)
            detail = {"tenant_id": str(erasure.tenant_id), "sha256": erasure.sha256}
            row = NewEntry(now, None, None, "erasure.finish", str(erasure_id), detail=detail)
            await session.flush()
            await append(session, [row])
        await self._reload()

    async def _look_again(self, erasure: Erasure) -> None:
        """Look for late usage of an erased tenant; not of an end user, whose name is not known any more."""
        if not erasure.is_of_user:
            subject = late_subject(erasure)
            try:
                await move_late_usage(self._stores, subject)
            except Waits as reason:
                _log.info("late usage of an erased tenant is looked for again later: %s", reason)
                return
        async with self._stores.sessions.begin() as session:
            kept = await session.get(Erasure, erasure.id)
            assert kept is not None
            kept.looked_again_at = utc_now()

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            if not await self._holds_lease():
                return

    async def _holds_lease(self) -> bool:
        return await hold_lease(self._stores.sessions, "erasures", self._holder, now=utc_now(), lasts=LEASE)
