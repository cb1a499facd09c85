"""Removes expired files and files of interrupted uploads, in the one process that holds the lease."""

import asyncio
import logging
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from gateway.artifacts.files import FileStore
from gateway.clock import utc_now
from gateway.database import Sessions
from gateway.domain.files.service import files_to_remove, forget_file
from gateway.domain.webhooks.service import hold_lease
from gateway.http.errors import GatewayError

_log = logging.getLogger(__name__)

ROUND_S = 30.0
LEASE = timedelta(seconds=90)
ABANDONED = timedelta(hours=6)
AT_ONCE = 100


class FileKeeper:
    def __init__(self, sessions: Sessions, store: FileStore, *, holder: str) -> None:
        self._sessions = sessions
        self._store = store
        self._holder = holder

    async def tidy_forever(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self.tidy()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                _log.warning("files wait for the database: %s", error)
            except GatewayError as error:
                _log.warning("%s", error.message)

    async def tidy(self) -> int:
        """Remove files; returns how many. Does nothing if another process holds the lease."""
        now = utc_now()
        if not await hold_lease(self._sessions, "files", self._holder, now=now, lasts=LEASE):
            return 0
        over = await files_to_remove(self._sessions, now=now, abandoned_before=now - ABANDONED, limit=AT_ONCE)
        for file in over:
            await self._store.remove(file.digest, file.id)
            await forget_file(self._sessions, file.id)
        return len(over)
