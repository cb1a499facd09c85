"""Writes when keys were last used, in batches and never on a request's path."""

import asyncio
import logging
import time

from sqlalchemy import or_, update
from sqlalchemy.exc import SQLAlchemyError

from gateway.database import Sessions
from gateway.domain.keys.keyring import Keyring
from gateway.domain.keys.models import ApiKey

_log = logging.getLogger(__name__)

EVERY_S = 15.0
_BATCH = 200


class LastUsed:
    def __init__(self, sessions: Sessions, keyring: Keyring, *, every_s: float = EVERY_S) -> None:
        self._sessions = sessions
        self._keyring = keyring
        self._every_s = every_s
        self._written_until = time.monotonic()

    async def write_forever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.write()
            except (SQLAlchemyError, OSError) as error:
                _log.warning("cannot write when keys were last used: %s", error)

    async def write(self) -> None:
        """Write the keys that were used since the last successful write."""
        now = time.monotonic()
        used = sorted(self._keyring.used_since(self._written_until).items())
        for start in range(0, len(used), _BATCH):
            async with self._sessions.begin() as session:
                # In the order of ids, so that two gateways cannot deadlock.
                for key_id, at in used[start : start + _BATCH]:
                    is_later = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < at)
                    change = update(ApiKey).where(ApiKey.id == key_id, is_later).values(last_used_at=at)
                    await session.execute(change)
        self._written_until = now
