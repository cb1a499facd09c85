"""List pages in OpenAI's format: `{"object": "list", "data", "first_id", "last_id", "has_more"}`."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

T = TypeVar("T")
V = TypeVar("V", bound=BaseModel)
Order = Literal["asc", "desc"]


async def openai_page(
    session: AsyncSession,
    query: Select[T],
    column: InstrumentedAttribute[UUID],
    *,
    limit: int,
    after: UUID | None,
    order: Order,
    show: Callable[[T], V],
) -> dict[str, Any]:
    """One page of `query`, ordered by `column`: a UUIDv7, so this is the order of creation."""
    if after is not None:
        query = query.where(column > after if order == "asc" else column < after)
    ordered = query.order_by(column.asc() if order == "asc" else column.desc())
    rows = list(await session.scalars(ordered.limit(limit + 1)))
    data = [show(row).model_dump() for row in rows[:limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(rows) > limit,
    }
