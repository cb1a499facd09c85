"""Moves everything that is sealed to the current pepper at once; not keys, which nobody has (keys/rehashing.py)."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update

from gateway.database import Sessions
from gateway.domain.audit.chain import sealed_with
from gateway.domain.audit.models import AuditHead
from gateway.domain.audit.service import record
from gateway.domain.peppers.origin import note_origin
from gateway.domain.peppers.reports import move_reports
from gateway.domain.peppers.sealed import SEALED, Found, SealedColumn, sealed_rows
from gateway.domain.sealing import seal
from gateway.peppers import Peppers


@dataclass(frozen=True)
class Settled:
    moved: Mapping[str, int]
    unreadable: Mapping[str, int]


async def settle(
    sessions: Sessions, peppers: Peppers, *, now: datetime, on_progress: Callable[[int], None] = lambda _: None
) -> Settled:
    """Works row by row: after an interruption call it again; a change that a gateway makes meanwhile is kept."""
    await note_origin(sessions, peppers)
    moved: Counter[str] = Counter()
    unreadable: Counter[str] = Counter()
    for each in SEALED:
        async with sessions() as reading:
            async for found in sealed_rows(reading, each, peppers):
                if found.opened is None:
                    unreadable[each.name] += 1
                elif found.opened[1] != peppers.current:
                    await _move(sessions, each, found, found.opened[0], pepper=peppers.current)
                    moved[each.name] += 1
                    on_progress(moved.total())
    async with sessions.begin() as session:
        if num_reports := await move_reports(session, peppers):
            moved["erasure reports"] += num_reports
        head = await session.scalar(select(AuditHead))
        sealed = None if head is None else sealed_with(head.seal, head.num_rows, head.hash, peppers=peppers)
        if moved or (sealed is not None and sealed != peppers.current):
            # Adding this row also seals the log with the current pepper.
            detail = {"moved": dict(moved), "unreadable": dict(unreadable)}
            await record(session, None, "pepper.settle", object_id="pepper", tenant_id=None, now=now, detail=detail)
    return Settled(moved, unreadable)


async def _move(sessions: Sessions, each: SealedColumn, found: Found, secret: bytes, *, pepper: str) -> None:
    sealed = seal(secret, purpose=each.purpose, bound_to=found.bound_to, pepper=pepper)
    change = update(each.table).where(each.key == found.key, each.column == found.sealed)
    async with sessions.begin() as session:
        await session.execute(change.values({each.column.key: sealed}))
