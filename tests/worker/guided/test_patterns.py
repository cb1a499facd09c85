import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.guided.patterns import weight


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("", 0), ("abc", 3), ("a{3}b", 4), ("(ab){10}", 20), ("((a{2}b){3}){4}", 36), (r"\({5}", 5), ("[){9]{2}", 2)],
)
def test_repetitions_are_written_out(pattern: str, expected: int) -> None:
    assert weight(pattern) == expected


@given(st.text(alphabet="ab(){}[]\\,0123456789|", max_size=40))
def test_any_text_has_a_weight(text: str) -> None:
    assert weight(text) >= 0
