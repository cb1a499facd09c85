"""Moves keys in use to the current pepper: they are noted when they are accepted, and written later in batches."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from gateway.database import Sessions
from gateway.domain.keys.fields import KeyFields
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.secret import hash_key
from gateway.peppers import Peppers, id_of

_log = logging.getLogger(__name__)

EVERY_S = 2.0
MAX_WAITING = 20_000
"""Limit for new hashes that wait while the database is away; then the oldest are dropped. A keyring holds as many keys:
one that it dropped as well is noted again when it is next verified."""
_BATCH = 200


class Rehash(NamedTuple):
    key_id: UUID
    before: bytes
    after: bytes
    pepper_id: bytes


def rehash_of(row: KeyFields, key: str, pepper: str, peppers: Peppers) -> Rehash | None:
    """pepper: the row's hash was made with it. None: nothing to change, or another gateway switched before this one."""
    if pepper == peppers.upcoming or row.pepper_id == id_of(peppers.current):
        return None
    return Rehash(row.key_id, row.secret_hash, hash_key(key, pepper=peppers.current), id_of(peppers.current))


class Rehasher:
    def __init__(
        self,
        sessions: Sessions,
        take: Callable[[], Sequence[Rehash]],
        *,
        every_s: float = EVERY_S,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._sessions = sessions
        self._take = take
        self._every_s = every_s
        self._max_waiting = max_waiting
        self._waiting: dict[bytes, Rehash] = {}
        """By the hash before, oldest first."""

    async def write_forever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.write()
            except (SQLAlchemyError, OSError) as error:
                _log.warning("cannot move keys to the current pepper: %s", error)

    async def write(self) -> None:
        """Write all new hashes. If the database raises, so does this, and the rest waits for the next call.

        A key in use is not verified again, so it is not noted a second time.
        """
        self._waiting |= {each.before: each for each in self._take()}
        while len(self._waiting) > self._max_waiting:
            del self._waiting[next(iter(self._waiting))]
        # In the order of ids, so that two gateways cannot deadlock.
        found = sorted(self._waiting.values())
        for start in range(0, len(found), _BATCH):
            batch = found[start : start + _BATCH]
            async with self._sessions.begin() as session:
                for each in batch:
                    # Only the hash that we saw: the key may have been rotated, or moved by another gateway.
                    current = update(ApiKey).where(ApiKey.id == each.key_id, ApiKey.secret_hash == each.before)
                    await session.execute(current.values(secret_hash=each.after, pepper_id=each.pepper_id))
                    previous = update(ApiKey).where(
                        ApiKey.id == each.key_id, ApiKey.previous_secret_hash == each.before
                    )
                    await session.execute(
                        previous.values(previous_secret_hash=each.after, previous_pepper_id=each.pepper_id)
                    )
            for each in batch:
                del self._waiting[each.before]
