import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from text.stop import StopMatcher


def naive(text: str, stops: list[str]) -> str:
    """Read letter by letter: at the first place where stop strings end, cut before the longest of them."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


LETTERS = st.text(alphabet="ab👍", min_size=1, max_size=4)


@settings(max_examples=500, deadline=None)
@given(pieces=st.lists(st.text(alphabet="ab👍", max_size=4), max_size=12), stops=st.lists(LETTERS, max_size=4))
def test_any_cutting_gives_what_reading_letter_by_letter_gives(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    out, expected = "", naive("".join(pieces), stops)
    for piece in pieces:
        out += matcher.add(piece)
        assert expected.startswith(out), "text of a stop string went out"
    is_matched = matcher.matched is not None
    assert out + matcher.flush() == expected
    assert is_matched == (expected != "".join(pieces))


def test_only_a_possible_beginning_is_held_back() -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.add(piece) for piece in ["one E", "N", "ough", " E", "ND more"]] == ["one ", "", "ENough", " ", ""]
    assert matcher.matched == "END"
    assert matcher.add("x") == ""


@pytest.mark.parametrize("text", ["", "abc"])
def test_without_stop_strings_text_passes(text: str) -> None:
    matcher = StopMatcher([])
    assert (matcher.add(text), matcher.flush(), matcher.matched) == (text, "", None)
