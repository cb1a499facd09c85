"""The results of a batch: durable before they are billed, and billed before their events are deleted.

A line's result and the usage event that bills it are written in one transaction. Then the outbox takes the event, and
then the event is removed from the row. A process that dies between two of these steps leaves a row with its event. The
next process closes the identical event again, and the consumer drops the copy.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
from sqlalchemy import insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.batches.holding import held, touch
from gateway.batches.results import Outcome
from gateway.database import Sessions
from gateway.domain.batches.models import Batch, BatchResult
from gateway.metering.outbox import Outbox, OutboxFailed
from protocol.usage import UsageEvent

_log = logging.getLogger(__name__)

RETRY_S = 0.5
AT_ONCE = 500
GATHER_S = 0.1
"""How long results wait to share a transaction: it costs the process more than a line, and delays live requests."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UsageEvent).decode


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    line: int
    outcome: Outcome
    done: "asyncio.Future[None]"


class Journal:
    """`write_forever` must run concurrently with the callers of `put`."""

    def __init__(self, sessions: Sessions, outbox: Outbox, batch_id: UUID, holder: str) -> None:
        self._sessions = sessions
        self._outbox = outbox
        self._batch_id = batch_id
        self._holder = holder
        self._pending: list[_Entry] = []
        self._closed: list[int] = []
        """Lines whose events the outbox has taken, but whose rows still contain them."""
        self._has_some = asyncio.Event()

    async def put(self, line: int, outcome: Outcome) -> None:
        """Returns when the result is durable and billed."""
        entry = _Entry(line, outcome, asyncio.get_running_loop().create_future())
        self._pending.append(entry)
        self._has_some.set()
        await entry.done

    async def write_forever(self) -> None:
        """Write pending results, up to AT_ONCE per transaction. Raises LeaseLost."""
        while True:
            await self._has_some.wait()
            await asyncio.sleep(GATHER_S)
            self._has_some.clear()
            while entries := self._pending[:AT_ONCE]:
                del self._pending[:AT_ONCE]
                await self.write([(entry.line, entry.outcome) for entry in entries])
                for entry in entries:
                    if not entry.done.done():
                        entry.done.set_result(None)

    async def write(self, results: Sequence[tuple[int, Outcome]]) -> None:
        """Write results and bill them. Retries while the database is unavailable. Raises LeaseLost."""
        while True:
            try:
                closed = list(self._closed)
                async with self._sessions.begin() as session:
                    await self._insert(session, results)
                    await self._let_go(session, closed)
                break
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                _log.warning("results of batch %s wait for the database: %s", self._batch_id, error)
                await asyncio.sleep(RETRY_S)
        del self._closed[: len(closed)]
        await self._bill([(line, outcome.event) for line, outcome in results if outcome.event is not None])

    async def settle(self) -> None:
        """Bill results that a process that died may have left unbilled. Raises LeaseLost."""
        query = select(BatchResult.line, BatchResult.event)
        query = query.where(BatchResult.batch_id == self._batch_id, BatchResult.event.is_not(None)).limit(AT_ONCE)
        while True:
            async with self._sessions.begin() as session:
                await touch(session, held(self._batch_id, self._holder).values(holder=self._holder))
                await self._let_go(session, self._closed)
                rows = (await session.execute(query)).all()
            self._closed.clear()
            if not rows:
                return
            await self._bill([(line, _decode(event)) for line, event in rows if event is not None], is_copy=True)

    async def _insert(self, session: AsyncSession, results: Sequence[tuple[int, Outcome]]) -> None:
        lines = [line for line, _ in results]
        # Rows may exist already if an earlier commit succeeded but its answer was lost.
        there = set(
            await session.scalars(
                select(BatchResult.line).where(BatchResult.batch_id == self._batch_id, BatchResult.line.in_(lines))
            )
        )
        rows = [
            {
                "batch_id": self._batch_id,
                "line": line,
                "is_ok": outcome.is_ok,
                "content": outcome.content,
                "event": None if outcome.event is None else _encode(outcome.event),
            }
            for line, outcome in results
            if line not in there
        ]
        num_ok = sum([row["is_ok"] is True for row in rows])
        await touch(
            session,
            held(self._batch_id, self._holder).values(
                num_completed=Batch.num_completed + num_ok, num_failed=Batch.num_failed + len(rows) - num_ok
            ),
        )
        if rows:
            await session.execute(insert(BatchResult), rows)

    async def _let_go(self, session: AsyncSession, lines: Sequence[int]) -> None:
        for start in range(0, len(lines), AT_ONCE):
            some = lines[start : start + AT_ONCE]
            is_theirs = (BatchResult.batch_id == self._batch_id) & BatchResult.line.in_(some)
            await session.execute(update(BatchResult).where(is_theirs).values(event=None))

    async def _bill(self, events: Sequence[tuple[int, UsageEvent]], *, is_copy: bool = False) -> None:
        futures = [(line, self._outbox.close(event, is_correction=is_copy)) for line, event in events]
        for line, future in futures:
            try:
                await future
            except OutboxFailed as error:
                # The outbox keeps the event and retries; if the process dies first, the row still has the event.
                _log.warning("usage of batch %s is not on disk yet: %s", self._batch_id, error)
                if is_copy:
                    await asyncio.sleep(RETRY_S)
            else:
                self._closed.append(line)
