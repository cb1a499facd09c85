"""The price book that a change would make."""

from datetime import UTC, datetime, timedelta

from gateway.billing.previews import as_if_since, with_change
from gateway.domain.catalog import PriceRows
from gateway.domain.prices.price_book import BATCHES, DiscountTerms, PriceBook, PriceTerms, SurchargeTerms

MAY = datetime(2026, 5, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def price(version: str, nanousd: int, since: datetime, model: str = "m") -> PriceTerms:
    return PriceTerms(version, model, nanousd, nanousd, nanousd, 0, since)


ROWS = PriceRows(
    [price("1", 1, MAY), price("2", 2, MAY + 10 * DAY), price("3", 3, MAY, model="other")],
    [SurchargeTerms("1", "m", None, 5, MAY)],
    [DiscountTerms("1", "pro", 1000, MAY), DiscountTerms("2", BATCHES, 500, MAY)],
)


def prompt_prices(book: PriceBook, *days: int, model: str = "m") -> list[int]:
    return [book.price_of(model, now=MAY + day * DAY).prompt_nanousd for day in days]


def test_a_correction_holds_until_what_begins_later() -> None:
    book = with_change(ROWS, price("9", 9, MAY + 3 * DAY))
    assert prompt_prices(book, 2, 4, 11) == [1, 9, 2]
    assert prompt_prices(PriceBook(*ROWS), 2, 4, 11) == [1, 1, 2], "the book itself is as it was"


def test_a_new_price_is_taken_as_if_it_had_held_all_the_time() -> None:
    book = as_if_since(ROWS, price("9", 9, MAY + 40 * DAY), MAY + DAY)
    assert prompt_prices(book, 0, 1, 4, 11, 50) == [1, 9, 9, 9, 9]
    assert prompt_prices(book, 0, 11, model="other") == [3, 3]


def test_surcharges_and_discounts_replace_their_own_alone() -> None:
    adapter = "01900000-0000-7000-8000-000000000000"
    book = as_if_since(ROWS, SurchargeTerms("9", "m", None, 7, MAY + 40 * DAY), MAY)
    assert book.price_of("m", adapter_id=adapter, now=MAY + DAY).adapter_token_nanousd == 7
    book = as_if_since(ROWS, DiscountTerms("9", "pro", 0, MAY + 40 * DAY), MAY)
    assert book.price_of("m", tier="pro", now=MAY + DAY).discount_basis_points == 0
    assert book.price_of("m", tier="pro", is_batch=True, now=MAY + DAY).discount_basis_points == 500
