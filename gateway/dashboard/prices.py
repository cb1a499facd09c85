"""The price book: rows in force, coming rows, and every past version."""

from collections.abc import Sequence
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.links import query_of
from gateway.dashboard.numbers import places_of
from gateway.dashboard.pages import ADMINS, Page
from gateway.dashboard.price_rows import R, Span, read_book
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.domain.prices.price_book import UNPRICED_VERSION
from gateway.services import Services

PATH = "/dashboard/prices"
MAX_ROWS = 500


async def show_prices(request: Request, services: Services, visitor: Visitor) -> Response:
    """Tenants see the models' prices, the surcharges of adapters that they may use, and the discounts of their own tier
    and of batches. Other surcharges and discounts are for the platform alone."""
    book, now = await read_book(services.sessions), utc_now()
    principal = visitor.principal
    surcharges = [
        each
        for each in book.surcharges
        if principal.is_platform_admin
        or each.row.adapter_id is None
        or str(each.row.adapter_id) in visitor.names.adapters
    ]
    discounts = [
        each for each in book.discounts if principal.is_platform_admin or each.row.tier in ("", principal.tier)
    ]
    in_force = _in_force(book.prices, now)
    catalog = services.catalog.current
    unpriced = [
        model for model in sorted(catalog.models) if catalog.prices.price_of(model, now=now).version == UNPRICED_VERSION
    ]
    return render(
        "prices.html",
        visitor=visitor,
        prices=sorted(in_force, key=lambda each: each.row.model_id),
        surcharges=_in_force(surcharges, now),
        discounts=_in_force(discounts, now),
        coming=[*_coming(book.prices, now), *_coming(surcharges, now), *_coming(discounts, now)],
        unpriced=unpriced,
        places=places_of(each.row.minimum_nanousd for each in book.prices),
        now=now,
    )


async def show_history(request: Request, services: Services, visitor: Visitor) -> Response:
    query = query_of(f"{PATH}/history", visitor.asked(request), ("model",))
    book, model = await read_book(services.sessions), query["model"]
    rows = [each for each in book.prices if model in ("", each.row.model_id)]
    return render(
        "price_history.html",
        visitor=visitor,
        query=query,
        models=sorted({each.row.model_id for each in book.prices}),
        rows=rows[:MAX_ROWS],
        num_found=len(rows),
        places=places_of(each.row.minimum_nanousd for each in rows),
        now=utc_now(),
    )


def _in_force(spans: Sequence[Span[R]], now: datetime) -> list[Span[R]]:
    return [each for each in spans if each.is_in_force(now)]


def _coming(spans: Sequence[Span[R]], now: datetime) -> list[Span[R]]:
    return [each for each in spans if each.is_coming(now)]


PAGES = (
    Page("/prices", show_prices, who=ADMINS, label="Prices"),
    Page("/prices/history", show_history, who=ADMINS),
)
