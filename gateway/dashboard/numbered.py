"""Lists with numbered pages, for people to search and page through."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

T = TypeVar("T")
PAGE_SIZE = 50


@dataclass(frozen=True)
class Numbered(Generic[T]):
    rows: Sequence[T]
    total: int
    number: int
    num_pages: int


async def numbered(
    session: AsyncSession, query: Select[T], asked: str, *, order: Sequence[Any], size: int = PAGE_SIZE
) -> Numbered[T]:
    """The page that the URL asks for; the last one if there are fewer, the first if `asked` is no number."""
    total = await session.scalar(select(func.count()).select_from(query.subquery())) or 0
    num_pages = max(1, -(-total // size))
    number = min(max(1, int(asked)), num_pages) if asked.isascii() and asked.isdecimal() else 1
    rows = await session.scalars(query.order_by(*order).limit(size).offset((number - 1) * size))
    return Numbered(list(rows), total, number, num_pages)
