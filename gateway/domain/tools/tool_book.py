"""The tools that a tenant may use, read at most every REFRESH_S per tenant, however many requests name tools."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from gateway.database import Sessions
from gateway.domain.tools.models import ServerTool
from gateway.domain.tools.service import tools_visible_to
from gateway.http.errors import Unavailable

_log = logging.getLogger(__name__)

REFRESH_S = 2.0
READ_DEADLINE_S = 5.0
STALE_S = 600.0
"""How long the last read stays in use while the database is away; as for keys."""
MAX_TENANTS = 1000
Tools = Mapping[str, ServerTool]


@dataclass
class _Page:
    read_at_s: float = float("-inf")
    due_at_s: float = float("-inf")
    tools: Tools = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ToolBook:
    def __init__(self, sessions: Sessions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions = sessions
        self._clock = clock
        self._pages: OrderedDict[UUID, _Page] = OrderedDict()

    def forget(self) -> None:
        """After this, a change through the admin plane takes effect here at once; elsewhere within REFRESH_S."""
        self._pages.clear()

    async def tools_of(self, tenant_id: UUID) -> Tools:
        """Enabled tools by name. Raises Unavailable."""
        page = self._pages.setdefault(tenant_id, _Page())
        self._pages.move_to_end(tenant_id)
        if len(self._pages) > MAX_TENANTS:
            self._pages.popitem(last=False)
        if self._clock() >= page.due_at_s:
            async with page.lock:
                # Another request may have tried meanwhile.
                if self._clock() >= page.due_at_s:
                    await self._read(page, tenant_id)
        if self._clock() - page.read_at_s > STALE_S:
            raise Unavailable("server tools cannot be looked up at the moment", retry_after_s=REFRESH_S)
        return page.tools

    async def _read(self, page: _Page, tenant_id: UUID) -> None:
        """While the database is away, the last read stays in use."""
        began_at_s = self._clock()
        query = tools_visible_to(tenant_id).where(ServerTool.is_enabled)
        try:
            async with asyncio.timeout(READ_DEADLINE_S), self._sessions() as session:
                page.tools = {tool.name: tool for tool in await session.scalars(query)}
            page.read_at_s = began_at_s
        except (SQLAlchemyError, OSError) as error:
            _log.warning("cannot read a tenant's tools: %s", error)
        page.due_at_s = self._clock() + REFRESH_S
