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
    def __init__(self, sessions: Sessions, take: Callable[[], Sequence[Rehash]], *, every_s: float = EVERY_S) -> None:
        self._sessions = sessions
        self._take = take
        self._every_s = every_s

    async def write_forever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.write()
            except (SQLAlchemyError, OSError) as error:
                # The keys are noted again when they are next verified.
                _log.warning("cannot move keys to the current pepper: %s", error)

    async def write(self) -> None:
        # In the order of ids, so that two gateways cannot deadlock.
        found = sorted(self._take())
        for start in range(0, len(found), _BATCH):
            async with self._sessions.begin() as session:
                for each in found[start : start + _BATCH]:
                    # Only the hash that we saw: the key may have been rotated, or moved by another gateway.
                    current = update(ApiKey).where(ApiKey.id == each.key_id, ApiKey.secret_hash == each.before)
                    await session.execute(current.values(secret_hash=each.after, pepper_id=each.pepper_id))
                    previous = update(ApiKey).where(
                        ApiKey.id == each.key_id, ApiKey.previous_secret_hash == each.before
                    )
                    await session.execute(
                        previous.values(previous_secret_hash=each.after, previous_pepper_id=each.pepper_id)
                    )
