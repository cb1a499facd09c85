import pytest

from gateway.dashboard.amounts import shown_amount, typed_basis_points, typed_nanousd
from gateway.dashboard.numbers import column_money, exact_money, per_million, places_of
from gateway.http.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "nanousd"),
    [
        ("0.25", 250_000_000),
        ("$1,000", 10**12),
        ("-3", -3 * 10**9),
        ("−3.5", -3_500_000_000),
        ("0.000000001", 1),
        ("7.", 7 * 10**9),
        (" 1.10000000000000 ", 1_100_000_000),
    ],
)
def test_dollars_are_read_exactly(text: str, nanousd: int) -> None:
    assert typed_nanousd(text, param="x") == nanousd
    assert typed_nanousd(shown_amount(nanousd), param="x") == nanousd


@pytest.mark.parametrize("text", ["", "x", "1e3", "1.2.3", "1,00", "0.0000000001", "١", "--1", "NaN", "9" * 13])
def test_what_is_no_amount_names_its_field(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        typed_nanousd(text, param="x")
    assert refused.value.param == "x"


def test_a_million_tokens_cost_whole_nano_dollars_a_token() -> None:
    assert typed_nanousd("0.1", param="x", per=10**6) == 100
    assert per_million(100) == "$0.100"
    with pytest.raises(InvalidRequest):
        typed_nanousd("0.0001", param="x", per=10**6)


def test_percent_have_two_decimals() -> None:
    assert [typed_basis_points(text, param="x") for text in ("19", "7.25 %", "0")] == [1900, 725, 0]
    with pytest.raises(InvalidRequest):
        typed_basis_points("7.255", param="x")


def test_a_column_has_the_decimals_that_its_most_exact_amount_takes() -> None:
    amounts = [10**9, -1_500_000, 0]
    places = places_of(amounts)
    assert [column_money(each, places) for each in amounts] == ["$1.0000", "−$0.0015", "$0.0000"]
    assert (places_of([]), exact_money(-1), exact_money(0)) == (2, "−$0.000000001", "$0.00")
