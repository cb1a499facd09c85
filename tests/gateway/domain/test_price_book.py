from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.prices.price_book import PriceTerms

counts = st.integers(0, 2**40)


@given(st.tuples(counts, counts, counts), counts, counts, counts)
def test_the_lines_of_a_price_add_up_to_its_cost(
    prices: tuple[int, int, int], fresh: int, cached: int, completion: int
) -> None:
    terms = PriceTerms("v", "m", *prices, datetime(2026, 1, 1, tzinfo=UTC))
    tokens = {
        "prompt_tokens": fresh + cached,
        "cached_prompt_tokens": cached,
        "completion_tokens": completion,
    }
    lines = terms.lines(**tokens)
    assert sum(line.amount_nanousd for line in lines) == terms.cost_nanousd(**tokens)
    assert all(line.amount_nanousd == line.quantity * line.unit_price_nanousd for line in lines)
    assert {line.kind: line.quantity for line in lines} == {
        kind: count for kind, count in (("input", fresh), ("cached_input", cached), ("output", completion)) if count
    }
