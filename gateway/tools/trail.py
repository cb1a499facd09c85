"""Audit log entries for tool calls: handed over at once, even by a cancelled request, and written soon after."""

import asyncio
import logging
from collections import deque
from datetime import datetime
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from gateway.database import Sessions
from gateway.domain.audit.writing import NewEntry, append
from gateway.metrics import Metrics
from gateway.tools.calls import ToolCall, ToolResult

_log = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Limit for entries that wait while the database is away; further ones are dropped, logged and counted."""
_BATCH = 200
_RETRY_S = 1.0
_MAX_ARGUMENT_CHARS = 4000


class AuditTrail:
    def __init__(self, sessions: Sessions, metrics: Metrics, *, shows_arguments: bool) -> None:
        self._sessions = sessions
        self._metrics = metrics
        self._shows_arguments = shows_arguments
        self._waiting: deque[NewEntry] = deque()
        self._has_some = asyncio.Event()

    def note(self, call: ToolCall, result: ToolResult, *, duration_ms: float, now: datetime) -> None:
        detail: dict[str, Any] = {
            "tool": call.tool.name,
            "request_id": call.request_id,
            "call_id": call.call_id,
            "status": result.status,
            "http_status": result.http_status,
            "duration_ms": round(duration_ms, 1),
            "num_bytes": result.num_bytes,
        }
        if self._shows_arguments:
            detail["arguments"] = _plain(call.arguments)
        if len(self._waiting) >= MAX_WAITING:
            self._metrics.dropped_audit_entries.add(())
            _log.error("the audit log has no room for a tool call: %s", detail)
            return
        self._waiting.append(
            NewEntry(
                at=now,
                actor_key_id=call.principal.key_id,
                tenant_id=call.principal.tenant_id,
                action="tool.call",
                object_id=str(call.tool.id),
                request_id=call.request_id,
                detail=detail,
            )
        )
        self._has_some.set()

    async def write_forever(self) -> None:
        while True:
            await self._has_some.wait()
            try:
                await self.write()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                _log.warning("the audit log of tool calls waits for the database: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def write(self) -> None:
        """Write all waiting entries. If the database raises, so does this, and the rest still waits."""
        while self._waiting:
            batch = [self._waiting[i] for i in range(min(_BATCH, len(self._waiting)))]
            async with self._sessions.begin() as session:
                await append(session, batch)
            for _ in batch:
                self._waiting.popleft()
        self._has_some.clear()


def _plain(text: str) -> str:
    """The text in a form that every database takes."""
    return text[:_MAX_ARGUMENT_CHARS].encode("ascii", "backslashreplace").decode().replace("\x00", "\\x00")
