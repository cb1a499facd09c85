"""The price book's rows as pages show them: in force, coming and past."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import select

from gateway.database import Sessions
from gateway.domain.prices.models import Discount, Price, Surcharge

AnyRow = Price | Surcharge | Discount
R = TypeVar("R", Price, Surcharge, Discount)
_CORRECTION = timedelta(minutes=1)


@dataclass(frozen=True)
class Span(Generic[R]):
    """A row, and the time until which it holds; None: for good."""

    row: R
    until: datetime | None

    def is_in_force(self, now: datetime) -> bool:
        return self.row.valid_from <= now and (self.until is None or now < self.until)

    def is_coming(self, now: datetime) -> bool:
        return self.row.valid_from > now

    @property
    def was_corrected(self) -> bool:
        """Whether the row begins before it was written."""
        return self.row.created_at - self.row.valid_from > _CORRECTION


@dataclass(frozen=True)
class Book:
    """All rows, the newest first."""

    prices: Sequence[Span[Price]]
    surcharges: Sequence[Span[Surcharge]]
    discounts: Sequence[Span[Discount]]


async def read_book(sessions: Sessions) -> Book:
    async with sessions() as session:
        prices = list(await session.scalars(select(Price)))
        surcharges = list(await session.scalars(select(Surcharge)))
        discounts = list(await session.scalars(select(Discount)))
    return Book(spans(prices), spans(surcharges), spans(discounts))


def spans(rows: Iterable[R]) -> list[Span[R]]:
    """The newest first. Among rows that price the same thing and begin together, the one made last holds; the others
    never did."""
    latest: dict[Any, datetime] = {}
    found = []
    for row in sorted(rows, key=lambda each: (each.valid_from, each.version), reverse=True):
        found.append(Span(row, latest.get(of(row))))
        latest[of(row)] = row.valid_from
    return found


def of(row: AnyRow) -> tuple[str, str]:
    """The thing that the row prices."""
    match row:
        case Price():
            return row.model_id, ""
        case Surcharge():
            return row.model_id, str(row.adapter_id or "any adapter")
        case Discount():
            return row.tier, ""
