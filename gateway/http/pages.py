"""Paged lists: `{"data": [...], "next": cursor | null}`, with the parameters `limit` and `after`."""

from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from fastapi import Depends, Query
from pydantic import BaseModel
from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from gateway.http.errors import InvalidRequest

T = TypeVar("T")
S = TypeVar("S", bound=BaseModel)
MAX_LIMIT = 1000


class PageRequest(BaseModel):
    limit: int
    after: str | None


class Page(BaseModel, Generic[S]):
    data: list[S]
    next: str | None


def page_request(
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100, after: Annotated[str | None, Query(max_length=2000)] = None
) -> PageRequest:
    return PageRequest(limit=limit, after=after)


PageDep = Annotated[PageRequest, Depends(page_request)]


async def fetch_page(
    session: AsyncSession,
    query: Select[T],
    column: InstrumentedAttribute[Any],
    page: PageRequest,
    show: Callable[[T], S],
    *,
    is_newest_first: bool = False,
) -> Page[S]:
    """One page of `query` in the order of the unique `column`, whose last value is the next cursor.

    is_newest_first: in descending order, for a `column` that grows with time.
    """
    if page.after is not None:
        last = _cursor(column, page.after)
        query = query.where(column < last if is_newest_first else column > last)
    order = column.desc() if is_newest_first else column
    rows = list(await session.scalars(query.order_by(order).limit(page.limit + 1)))
    more = len(rows) > page.limit
    rows = rows[: page.limit]
    return Page(data=[show(row) for row in rows], next=str(getattr(rows[-1], column.key)) if more else None)


def _cursor(column: InstrumentedAttribute[Any], after: str) -> UUID | str:
    if column.type.python_type is not UUID:
        return after
    try:
        return UUID(after)
    except ValueError:
        raise InvalidRequest("after: send the `next` of the page before", param="after") from None
