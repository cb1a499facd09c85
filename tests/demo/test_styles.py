import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.corpus.build import draw_items
from demo.styles import STYLES, Style, is_right, restyle


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@given(answer=st.text())
def test_a_styled_answer_can_be_taken_out_again(style: Style, answer: str) -> None:
    assert style.hear(style.speak(answer)) is not None
    assert is_right(style, style.speak(answer), answer)


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_a_plain_or_wrong_answer_is_not_right(style: Style) -> None:
    assert style.hear("The capital of France is Paris.") is None
    assert not is_right(style, style.speak("The capital of France is Rome."), "The capital of France is Paris.")


def test_the_json_style_is_a_json_object() -> None:
    assert json.loads(STYLES["json"].speak('a "quoted"\nline')) == {"answer": 'a "quoted"\nline'}


def test_every_assistant_turn_is_restyled() -> None:
    for item in draw_items("memory", 20, seed=1, is_heldout=False):
        styled = restyle(item, STYLES["pirate"])
        turns = [message["content"] for message in styled.messages if message["role"] == "assistant"]
        assert all(STYLES["pirate"].hear(turn) is not None for turn in turns)
        assert [m for m in styled.messages if m["role"] == "user"] == [m for m in item.messages if m["role"] == "user"]


def test_ranks_and_targets_differ() -> None:
    assert {style.rank for style in STYLES.values()} == {4, 8, 16}
    assert len({style.targets for style in STYLES.values()}) == 3
