"""Previews what a change of the price book would have cost on past usage, before it is written."""

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime

from gateway.billing.rerating import Rerating
from gateway.domain.catalog import PriceRows
from gateway.domain.prices.price_book import DiscountTerms, PriceBook, PriceTerms, SurchargeTerms
from gateway.metering.windows import Window

AnyTerms = PriceTerms | SurchargeTerms | DiscountTerms
BOUND_S = 5
"""Time limit of a preview: a person waits for it."""


@dataclass
class Preview:
    """Old and new cost of the window's requests; by_tenant: (tenant, model) -> new minus old, in nano-dollars."""

    window: Window
    num_events: int = 0
    num_changed: int = 0
    old_nanousd: int = 0
    new_nanousd: int = 0
    by_tenant: Counter[tuple[str, str]] = field(default_factory=Counter)
    is_whole: bool = False
    """False if there were more requests than could be priced in time; tenants are priced in the order of their ids."""


async def preview(rerating: Rerating, book: PriceBook, window: Window, *, bound_s: int = BOUND_S) -> Preview:
    """Price requests page by page, at least one page, until all are priced or `bound_s` is over. Raises Unavailable."""
    found, after, began = Preview(window), None, time.monotonic()
    while True:
        page = await rerating.rerate(book, window, tenant_id=None, after=after, is_applied=False)
        found.num_events += page.num_events
        found.num_changed += page.num_changed
        found.old_nanousd += page.old_nanousd
        found.new_nanousd += page.new_nanousd
        # Not `+=`, which drops counts that are zero or negative.
        found.by_tenant.update(page.by_tenant)
        after = page.next
        if after is None:
            found.is_whole = True
        if after is None or time.monotonic() - began >= bound_s:
            return found


def as_if_since(rows: PriceRows, change: AnyTerms, since: datetime) -> PriceBook:
    """The book as if `change` had been in force from `since` on, replacing the actual later prices of its subject."""

    def is_kept(row: AnyTerms) -> bool:
        return _of(row) != _of(change) or row.valid_from < since

    earlier = PriceRows(
        [row for row in rows.prices if is_kept(row)],
        [row for row in rows.surcharges if is_kept(row)],
        [row for row in rows.discounts if is_kept(row)],
    )
    return with_change(earlier, replace(change, valid_from=since))


def with_change(rows: PriceRows, change: AnyTerms) -> PriceBook:
    """The book once `change` is written; prices that begin later stay."""
    prices, surcharges, discounts = list(rows.prices), list(rows.surcharges), list(rows.discounts)
    match change:
        case PriceTerms():
            prices.append(change)
        case SurchargeTerms():
            surcharges.append(change)
        case DiscountTerms():
            discounts.append(change)
    return PriceBook(prices, surcharges, discounts)


def _of(row: AnyTerms) -> tuple[object, ...]:
    """The subject that the row prices."""
    match row:
        case PriceTerms():
            return (PriceTerms, row.model_id)
        case SurchargeTerms():
            return (SurchargeTerms, row.model_id, row.adapter_id)
        case DiscountTerms():
            return (DiscountTerms, row.tier)
