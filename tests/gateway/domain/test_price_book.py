from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.prices.price_book import (
    BATCHES,
    UNPRICED_VERSION,
    DiscountTerms,
    PriceBook,
    PriceTerms,
    RequestPrice,
    SurchargeTerms,
)

START = datetime(2026, 3, 1, tzinfo=UTC)
ADAPTER = UUID(int=5)
amounts = st.integers(0, 10**12)
prices = st.builds(
    RequestPrice,
    version=st.just("v"),
    prompt_nanousd=amounts,
    cached_prompt_nanousd=amounts,
    completion_nanousd=amounts,
    adapter_token_nanousd=amounts,
    minimum_nanousd=amounts,
    discount_basis_points=st.integers(0, 10_000),
    cached_answer_basis_points=st.integers(0, 10_000),
)
tokens = st.integers(0, 200_000)


@given(prices, tokens, tokens, st.integers(0, 100), st.booleans())
def test_the_lines_make_up_the_cost(
    price: RequestPrice, prompt: int, completion: int, percent_cached: int, is_cached_answer: bool
) -> None:
    used: dict[str, Any] = {
        "prompt_tokens": prompt,
        "cached_prompt_tokens": prompt * percent_cached // 100,
        "completion_tokens": completion,
        "is_cached_answer": is_cached_answer,
    }
    lines = price.lines(**used)
    assert sum(line.amount_nanousd for line in lines) == price.cost_nanousd(**used) >= 0
    assert all(line.amount_nanousd == line.quantity * line.unit_price_nanousd for line in lines)
    assert all(line.quantity for line in lines)
    counted = {line.kind: line.quantity for line in lines}
    assert counted.get("input", 0) + counted.get("cached_input", 0) == prompt
    assert counted.get("output", 0) == completion


@given(prices, tokens, tokens, st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.booleans())
def test_a_reservation_covers_whatever_the_request_comes_to(
    price: RequestPrice,
    prompt: int,
    most: int,
    percent_cached: int,
    percent_made: int,
    percent_read: int,
    is_cached_answer: bool,
) -> None:
    read = prompt * percent_read // 100
    cost = price.cost_nanousd(
        prompt_tokens=read,
        cached_prompt_tokens=read * percent_cached // 100,
        completion_tokens=most * percent_made // 100,
        is_cached_answer=is_cached_answer,
    )
    assert cost <= price.most_nanousd(prompt_tokens=prompt, completion_tokens=most)


def test_a_minimum_tops_up_before_the_discount_and_nothing_costs_nothing() -> None:
    price = RequestPrice("v", prompt_nanousd=10, minimum_nanousd=1000, discount_basis_points=1500)
    lines = price.lines(prompt_tokens=7, cached_prompt_tokens=0, completion_tokens=0)
    assert [(line.kind, line.amount_nanousd) for line in lines] == [("input", 70), ("minimum", 930), ("discount", -150)]
    assert price.cost_nanousd(prompt_tokens=0, cached_prompt_tokens=0, completion_tokens=0) == 0
    assert price.lines(prompt_tokens=0, cached_prompt_tokens=0, completion_tokens=0) == ()


def test_the_output_of_an_answer_from_the_cache_costs_its_share_of_model_and_adapter() -> None:
    price = RequestPrice("v", 10, 4, 20, adapter_token_nanousd=2, cached_answer_basis_points=2500)
    used = {"prompt_tokens": 3, "cached_prompt_tokens": 3, "completion_tokens": 8}
    assert price.cost_nanousd(**used) == 3 * (4 + 2) + 8 * (20 + 2)
    assert price.cost_nanousd(**used, is_cached_answer=True) == 3 * (4 + 2) + 8 * (20 + 2) // 4


def book() -> PriceBook:
    return PriceBook(
        [
            PriceTerms("p1", "m", 10, 5, 20, 0, START),
            PriceTerms("p2", "m", 11, 5, 20, 0, START + timedelta(days=1)),
            PriceTerms("p3", "m", 12, 5, 20, 0, START + timedelta(days=1)),
        ],
        [SurchargeTerms("s1", "m", None, 3, START), SurchargeTerms("s2", "m", ADAPTER, 1, START + timedelta(days=1))],
        [DiscountTerms("d1", "pro", 1000, START + timedelta(days=1))],
    )


def version_at(now: datetime, *, adapter: UUID | None = None, tier: str = "free", model: str = "m") -> str:
    adapter_id = None if adapter is None else str(adapter)
    return book().price_of(model, adapter_id=adapter_id, tier=tier, now=now).version


def test_each_part_of_a_price_begins_on_its_own_instant() -> None:
    boundary = START + timedelta(days=1)
    just_before = boundary - timedelta(microseconds=1)
    assert version_at(START - timedelta(microseconds=1)) == UNPRICED_VERSION
    assert version_at(just_before, adapter=ADAPTER, tier="pro") == "p1+s1"
    # Of two that begin together the one that was made last holds.
    assert version_at(boundary, adapter=ADAPTER, tier="pro") == "p3+s2+d1"
    assert version_at(boundary, adapter=UUID(int=6)) == "p3+s1"
    assert version_at(boundary) == "p3"
    assert version_at(boundary, model="other", adapter=ADAPTER, tier="pro") == UNPRICED_VERSION


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, ADAPTER, UUID(int=6)]),
            st.sampled_from([None, "free", "pro"]),
            st.sampled_from(["m", "other"]),
            st.integers(-2, 3),
        )
    )
)
def test_what_was_found_before_holds_exactly_as_long_as_its_prices(
    asked: list[tuple[UUID | None, str | None, str, int]],
) -> None:
    kept = book()
    for adapter, tier, model, half_days in asked:
        adapter_id, now = None if adapter is None else str(adapter), START + half_days * timedelta(hours=12)
        expected = book().price_of(model, adapter_id=adapter_id, tier=tier, now=now)
        assert kept.price_of(model, adapter_id=adapter_id, tier=tier, now=now) == expected


def test_a_batch_gets_the_larger_discount_of_its_tiers_and_its_own() -> None:
    discounts = [DiscountTerms("small", "pro", 1000, START), DiscountTerms("large", "gold", 7000, START)]
    priced = PriceBook(
        [PriceTerms("p", "m", 10, 5, 20, 0, START)], (), [*discounts, DiscountTerms("b", BATCHES, 5000, START)]
    )

    def found(tier: str, *, is_batch: bool) -> tuple[str, int]:
        price = priced.price_of("m", tier=tier, is_batch=is_batch, now=START)
        return price.version, price.discount_basis_points

    assert [found(tier, is_batch=True) for tier in ("free", "pro", "gold")] == [
        ("p+b", 5000),
        ("p+b", 5000),
        ("p+large", 7000),
    ]
    assert [found(tier, is_batch=False) for tier in ("free", "pro")] == [("p", 0), ("p+small", 1000)]
