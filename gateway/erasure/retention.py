"""Retention of the contents of audit rows, and of batches that have ended, for as long as the operator chose.

Sessions, responses, files and usage have retention periods of their own, which their stores enforce.
"""

import asyncio
import logging
from datetime import datetime, timedelta

from sqlalchemy import CursorResult, delete
from sqlalchemy.exc import SQLAlchemyError

from gateway.clock import utc_now
from gateway.database import Sessions
from gateway.domain.audit.erasing import erase_contents
from gateway.domain.audit.models import AuditEntry
from gateway.domain.batches.models import LIVE, Batch
from gateway.domain.webhooks.service import hold_lease

_log = logging.getLogger(__name__)

ROUND_S = 600.0
LEASE = timedelta(seconds=60)


class Retention:
    """A number of days that is None: keep for ever."""

    def __init__(
        self, sessions: Sessions, *, audit_contents_days: int | None, batches_days: int | None, holder: str
    ) -> None:
        self._sessions = sessions
        self._audit_contents_days = audit_contents_days
        self._batches_days = batches_days
        self._holder = holder

    async def keep_forever(self) -> None:
        while True:
            try:
                if await hold_lease(self._sessions, "erasures", self._holder, now=utc_now(), lasts=LEASE):
                    await self.tidy(now=utc_now())
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                _log.warning("what is over stays until the database answers: %s", error)
            await asyncio.sleep(ROUND_S)

    async def tidy(self, *, now: datetime) -> tuple[int, int]:
        """Returns how many audit rows were emptied and how many batches were deleted."""
        num_rows = num_batches = 0
        if self._audit_contents_days is not None:
            is_over = AuditEntry.at < now - timedelta(days=self._audit_contents_days)
            why = {"kept_days": self._audit_contents_days}
            num_rows = await erase_contents(self._sessions, is_over, tenant_id=None, why=why, now=now)
        if self._batches_days is not None:
            # A batch ends at the latest a day after it was created.
            is_old = Batch.created_at < now - timedelta(days=self._batches_days + 1), Batch.status.not_in(LIVE)
            async with self._sessions.begin() as session:
                gone = await session.execute(delete(Batch).where(*is_old))
            assert isinstance(gone, CursorResult)
            num_batches = gone.rowcount
        return num_rows, num_batches
