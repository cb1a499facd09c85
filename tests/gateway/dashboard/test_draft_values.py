import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.amounts import shown_amount
from gateway.dashboard.draft_values import decimal, nanousd, whole


@pytest.mark.parametrize(
    ("text", "amount"),
    [("", None), ("5000", 5000), ("5,000", 5000), ("1 000", 1000), ("-1", -1), ("5.000", "5.000"), ("1,00", "1,00"),
     ("\u00b2", "\u00b2"), ("\u0663", "\u0663"), ("1e3", "1e3"), ("9" * 30, "9" * 30)],
)  # fmt: skip
def test_whole_numbers_are_read_and_others_stay_text(text: str, amount: int | str | None) -> None:
    assert whole(text) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [("", None), ("12.50", 12_500_000_000), ("$1,000", 10**12), ("0.000000001", 1), ("0.0000000001", "0.0000000001"),
     ("12,50", "12,50"), ("1.2.3", "1.2.3"), ("NaN", "NaN"), ("-1", -(10**9)), ("1e3", "1e3")],
)  # fmt: skip
def test_dollars_are_read_exactly(text: str, amount: int | str | None) -> None:
    assert nanousd(text) == amount


@given(st.integers(0, 2**53))
def test_an_amount_that_is_shown_is_read_back(amount: int) -> None:
    assert nanousd(shown_amount(amount)) == amount


def test_decimals_are_read() -> None:
    assert [decimal(text) for text in ("", "0.25", "3", "inf", "x")] == [None, 0.25, 3.0, "inf", "x"]
