"""A real database whose answers a test can hold back; queries are counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from gateway.database import Sessions


class GatedSessions:
    """While `gate` is not set, the database executes queries, but their results are held back."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.gate = asyncio.Event()
        self.gate.set()
        self.num_queries = 0
        self.num_held = 0
        self.most_at_once = 0

    def __call__(self) -> AbstractAsyncContextManager["_GatedSession"]:
        return self._open()

    def as_sessions(self) -> Sessions:
        return cast(Sessions, self)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator["_GatedSession"]:
        async with self.sessions() as session:
            yield _GatedSession(self, session)


class _GatedSession:
    def __init__(self, owner: GatedSessions, session: Any) -> None:
        self._owner = owner
        self._session = session

    async def execute(self, statement: Any) -> Any:
        owner = self._owner
        owner.num_queries += 1
        owner.num_held += 1
        owner.most_at_once = max(owner.most_at_once, owner.num_held)
        try:
            result = await self._session.execute(statement)
            await owner.gate.wait()
            return result
        finally:
            owner.num_held -= 1
