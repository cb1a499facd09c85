import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.templates import LLAMA, MISTRAL, Style
from tests.support.vocabularies import make_byte_level, make_sentencepiece, make_word_pieces
from text.detokenizer import IncrementalDetokenizer
from text.tokenizer import Tokenizer

BYTE_LEVEL, SENTENCEPIECE, WORD_PIECES = make_byte_level(), make_sentencepiece(), make_word_pieces()
HARD = [
    "<｜tool▁sep｜>",
    "👩‍👩‍👧‍👦",
    "🇫🇷",
    "👍🏽",
    "é",
    "ạ̈",
    "日本",
    "한",
    "  ",
    "\n",
    "a",
    "<s>",
    "▁",
    "\ufffd",
    "\x00",
    "fox",
]
TEXTS = st.lists(st.one_of(st.sampled_from(HARD), st.text(max_size=8)), max_size=20).map("".join)


def increments(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    """The pieces that come out when `ids` arrive in groups of the sizes `cuts`, over and over."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces, start, turn = [], 0, 0
    while start < len(ids):
        size = cuts[turn % len(cuts)]
        pieces.append(detokenizer.add(ids[start : start + size]))
        start, turn = start + size, turn + 1
    return [*pieces, detokenizer.flush()]


PLAIN_IDS = [i for i in range(BYTE_LEVEL.vocab_size + 3) if i != BYTE_LEVEL.token_id("<tool_call>")]
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.sampled_from(PLAIN_IDS), max_size=60), cuts=CUTS)
def test_byte_level_increments_make_the_whole_text_for_any_ids(ids: list[int], cuts: list[int]) -> None:
    assert "".join(increments(BYTE_LEVEL, ids, cuts)) == BYTE_LEVEL.decode(ids)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, cuts=CUTS)
@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
def test_increments_make_the_whole_text(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = increments(tokenizer, ids, cuts)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, SENTENCEPIECE.vocab_size - 1), max_size=40), cuts=CUTS)
def test_sentencepiece_increments_do_not_depend_on_the_grouping(ids: list[int], cuts: list[int]) -> None:
    """Of broken UTF-8 only the broken part is replaced, where the library replaces the whole run of bytes."""
    text = "".join(increments(SENTENCEPIECE, ids, cuts))
    assert text == "".join(increments(SENTENCEPIECE, ids, [1]))
    whole = SENTENCEPIECE.decode(ids)
    assert text == whole or "\ufffd" in whole


def test_word_pieces_make_the_whole_text() -> None:
    ids = WORD_PIECES.encode("The quick brown fox jumps over the lazy dog.", add_special_tokens=False)
    assert "".join(increments(WORD_PIECES, ids, [1])) == WORD_PIECES.decode(ids)


def test_a_character_waits_for_its_last_byte() -> None:
    ids = BYTE_LEVEL.encode("𓀀", add_special_tokens=False)
    assert len(ids) > 1
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    assert [detokenizer.add([token_id]) for token_id in ids] == [""] * (len(ids) - 1) + ["𓀀"]


def test_a_cut_character_is_replaced_at_the_end() -> None:
    ids = BYTE_LEVEL.encode("a𓀀", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    assert (detokenizer.add(ids[:-1]), detokenizer.flush()) == ("a", "\ufffd")


def test_a_continuation_keeps_its_leading_space() -> None:
    ids = SENTENCEPIECE.encode("fox", add_special_tokens=False)
    assert IncrementalDetokenizer(SENTENCEPIECE).add(ids) == "fox"
    assert IncrementalDetokenizer(SENTENCEPIECE, is_continuation=True).add(ids) == " fox"


def test_special_tokens_have_no_text_but_the_marks_of_a_tool_call_have() -> None:
    sealed = BYTE_LEVEL.seal.close("<|im_start|>hi<|im_end|><tool_call>")
    ids = BYTE_LEVEL.encode(sealed, add_special_tokens=True)
    assert IncrementalDetokenizer(BYTE_LEVEL).add(ids) == "hi<tool_call>"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE, WORD_PIECES], ids=["byte", "sentence", "word"])
def test_the_cost_of_a_token_does_not_grow_with_the_answer(tokenizer: Tokenizer) -> None:
    """100,000 tokens: a decoder that looked at the whole answer each time would take hours."""
    ids = tokenizer.encode("the quick brown fox 👍 ", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    started = time.process_time()
    for i in range(100_000):
        detokenizer.add([ids[i % len(ids)]])
    assert time.process_time() - started < 30


@pytest.mark.parametrize(("style", "mark"), [(LLAMA, "<|python_tag|>"), (MISTRAL, "[TOOL_CALLS]")], ids=str)
def test_a_special_token_that_marks_a_call_is_text_where_it_is_asked_for(style: Style, mark: str) -> None:
    tokenizer = style.bundle().tokenizer
    word = tokenizer.encode("abc", add_special_tokens=False)
    mark_id = tokenizer.token_id(mark)
    assert mark_id is not None
    ids = [*word, mark_id, *word]
    assert IncrementalDetokenizer(tokenizer).add(ids).replace(" ", "") == "abcabc"
    shown = IncrementalDetokenizer(tokenizer, shown=[mark, "[NONE]"])
    assert "".join(shown.add([each]) for each in ids) + shown.flush() in (f"abc{mark}abc", f"abc{mark} abc")
