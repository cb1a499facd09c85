"""Runs batches in every gateway process: each takes batches that no process holds, a few at a time."""

import asyncio
import logging
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from gateway.batches.execution import Execution
from gateway.batches.holding import LeaseLost, release, take_batch
from gateway.clock import utc_now
from gateway.database import Sessions
from gateway.domain.batches.models import Batch
from gateway.http.errors import GatewayError

_log = logging.getLogger(__name__)

POLL_S = 1.0
AT_ONCE = 4
"""Batches that one process runs concurrently."""
RETRY_S = 5.0


class BatchRunner:
    def __init__(self, sessions: Sessions, execution: Execution, *, holder: str) -> None:
        self._sessions = sessions
        self._execution = execution
        self._holder = holder
        self._running: dict[asyncio.Task[None], UUID] = {}
        """Task -> tenant id of its batch."""

    async def run_forever(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    while len(self._running) < AT_ONCE and (batch := await self._take()) is not None:
                        task = group.create_task(self._run(batch), name=f"batch-{batch.id}")
                        self._running[task] = batch.tenant_id
                        task.add_done_callback(self._running.pop)
                except (SQLAlchemyError, OSError, TimeoutError) as error:
                    _log.warning("batches wait for the database: %s", error)
                await asyncio.sleep(POLL_S)

    async def leave(self) -> None:
        """Release this process's batches, so that other processes may continue them."""
        try:
            await release(self._sessions, self._holder)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            _log.warning("batches stay held until their leases end: %s", error)

    async def _take(self) -> Batch | None:
        return await take_batch(self._sessions, self._holder, busy=set(self._running.values()), now=utc_now())

    async def _run(self, batch: Batch) -> None:
        try:
            await self._execution.run(batch)
        except LeaseLost:
            _log.warning("batch %s is run by another gateway now", batch.id)
        except (SQLAlchemyError, OSError, TimeoutError, GatewayError) as error:
            # The lease expires, and the process that then takes the batch continues it.
            _log.warning("batch %s waits: %s", batch.id, error)
            await asyncio.sleep(RETRY_S)
        except Exception:
            _log.exception("batch %s failed, and is tried again", batch.id)
            await asyncio.sleep(RETRY_S)
