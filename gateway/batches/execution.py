"""Runs one batch to its end. A process that takes over a started batch skips the lines that already have a result."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import insert, select

from gateway.artifacts.files import FileStore
from gateway.batches.holding import held, prefix_of_key, renew, touch
from gateway.batches.journal import AT_ONCE, Journal
from gateway.batches.lines import MAX_PROBLEMS, InputCheck, Lines, Problem, numbered_lines, parse_line
from gateway.batches.outputs import write_outputs
from gateway.batches.pace import LineRunner, Pace
from gateway.batches.results import Outcome, never_run
from gateway.batches.running import LinesRun
from gateway.clock import utc_now
from gateway.database import Sessions
from gateway.domain.batches.models import Batch, BatchResult, BatchStatus
from gateway.domain.files.models import StoredFile
from gateway.http.errors import NotFound
from gateway.metering.outbox import Outbox

RENEW_S = 2.0
T = TypeVar("T")


class Execution:
    def __init__(
        self,
        sessions: Sessions,
        store: FileStore,
        outbox: Outbox,
        runner: LineRunner,
        pace: Pace,
        *,
        holder: str,
        max_line_bytes: int,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._outbox = outbox
        self._runner = runner
        self._pace = pace
        self._holder = holder
        self._max_line_bytes = max_line_bytes
        self._clock = clock

    async def run(self, batch: Batch) -> None:
        """Raises LeaseLost, or a GatewayError or database error if the batch must be retried later."""
        if batch.status == "validating":
            batch = await self._beside(self._validate(batch), self._keep(batch))
        if batch.status == "failed":
            return
        journal = Journal(self._sessions, self._outbox, batch.id, self._holder)
        await journal.settle()
        if batch.status == "in_progress":
            batch = await self._run_lines(batch, journal)
        await self._beside(self._end(batch, journal), self._keep(batch))

    async def _validate(self, batch: Batch) -> Batch:
        check = InputCheck(batch.endpoint)
        try:
            async for lines in self._lines(batch):
                # Parsing megabytes of JSON on the event loop would stall every stream of this process.
                await asyncio.to_thread(check.feed, lines)
        except NotFound:
            check.fatal = Problem(None, "file_not_found", "the input file is gone", "input_file_id")
        check.finish()
        problems = [*([check.fatal] if check.fatal is not None else []), *check.problems]
        fields: dict[str, Any] = {"errors": [problem.as_json() for problem in problems[:MAX_PROBLEMS]] or None}
        if check.fatal is not None:
            fields |= {"status": "failed", "failed_at": self._clock()}
        else:
            fields |= {"status": "in_progress", "in_progress_at": self._clock(), "model": check.model}
            fields |= {"num_lines": check.num_lines, "num_failed": len(check.problems)}
        batch = await self._read(batch)
        if batch.status == "validating":
            async with self._sessions.begin() as session:
                await touch(session, held(batch.id, self._holder).where(Batch.status == "validating").values(fields))
                if check.fatal is None and check.problems:
                    await session.execute(insert(BatchResult), [_row(batch, each) for each in check.problems])
        return await self._read(batch)

    async def _run_lines(self, batch: Batch, journal: Journal) -> Batch:
        find_prefix = partial(prefix_of_key, self._sessions, batch.key_id)
        run = LinesRun(batch, find_prefix, journal, self._runner, self._pace)
        done = await self._done(batch)
        lines = run.run_all(self._lines(batch), done=done)
        await self._beside(lines, journal.write_forever(), self._keep(batch, run))
        if run.is_key_gone:
            problem = Problem(None, "key_revoked", "the key in whose name the batch ran was revoked")
            fields = {"status": "cancelling", "cancelling_at": self._clock(), "errors": [problem.as_json()]}
            async with self._sessions.begin() as session:
                await touch(session, held(batch.id, self._holder).values(fields))
        return await self._read(batch)

    async def _end(self, batch: Batch, journal: Journal) -> None:
        status, now = _last_status(batch), self._clock()
        if batch.status == "in_progress":
            fields = {"status": "finalizing", "finalizing_at": now}
            async with self._sessions.begin() as session:
                await touch(session, held(batch.id, self._holder).where(Batch.status == "in_progress").values(fields))
        if status == "expired":
            await self._report_missing(batch, journal)
        await journal.settle()
        await write_outputs(self._sessions, self._store, batch, self._holder, status=status, now=now)

    async def _report_missing(self, batch: Batch, journal: Journal) -> None:
        """Report lines that could not run within the completion window."""
        done = await self._done(batch)
        async for lines in self._lines(batch):
            missing: list[tuple[int, Outcome]] = []
            for number, line in lines:
                if number not in done:
                    request, _ = parse_line(line, batch.endpoint)
                    message = f"line {number}: it was not answered within {batch.completion_window}; send it again"
                    code = "batch_expired"
                    missing.append((number, never_run(batch.id, number, request.custom_id, code=code, message=message)))
            for start in range(0, len(missing), AT_ONCE):
                await journal.write(missing[start : start + AT_ONCE])

    async def _keep(self, batch: Batch, run: LinesRun | None = None) -> None:
        """Renew the lease, and stop the lines when the batch is cancelled or expires. Raises LeaseLost."""
        while True:
            now = await renew(self._sessions, batch.id, self._holder, now=self._clock())
            if run is not None and (now.status != "in_progress" or self._clock() >= now.expires_at):
                run.stop()
            await asyncio.sleep(RENEW_S)

    async def _beside(self, work: Coroutine[Any, Any, T], *loops: Coroutine[Any, Any, None]) -> T:
        """The result of `work`. If a loop beside it raises, `work` is cancelled and the exception propagates."""
        first = asyncio.create_task(work)
        tasks = [first, *(asyncio.create_task(loop) for loop in loops)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            return first.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _done(self, batch: Batch) -> set[int]:
        async with self._sessions() as session:
            return set(await session.scalars(select(BatchResult.line).where(BatchResult.batch_id == batch.id)))

    async def _lines(self, batch: Batch) -> AsyncIterator[Lines]:
        """The lines of the input file. Raises NotFound if the file is gone."""
        async with self._sessions() as session:
            file = await session.get(StoredFile, batch.input_file_id)
        if file is None:
            raise NotFound("the input file is gone")
        blocks = self._store.read(file.digest, file.id)
        async for lines in numbered_lines(blocks, max_line_bytes=self._max_line_bytes):
            yield lines

    async def _read(self, batch: Batch) -> Batch:
        async with self._sessions() as session:
            found = await session.get(Batch, batch.id)
        assert found is not None, "batches are never deleted"
        return found


def _last_status(batch: Batch) -> BatchStatus:
    if batch.status == "cancelling":
        return "cancelled"
    return "completed" if batch.num_completed + batch.num_failed >= batch.num_lines else "expired"


def _row(batch: Batch, problem: Problem) -> dict[str, Any]:
    assert problem.line is not None
    outcome = never_run(batch.id, problem.line, problem.custom_id, code=problem.code, message=problem.message)
    return {"batch_id": batch.id, "line": problem.line, "is_ok": False, "content": outcome.content, "event": None}
