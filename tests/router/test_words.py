import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.features import GROUPS, NAMES, Prompt, read
from router.words import HASH_BITS, read_words

TEXTS = st.text("abcXYZ 019.-é語\n", max_size=60)


@given(TEXTS)
def test_words_are_found_as_a_regular_expression_finds_them(text: str) -> None:
    utf8 = text.encode()
    words = read_words(utf8)
    assert words.lengths.tolist() == [len(word) for word in re.findall(rb"[a-zA-Z\x80-\xff]+", utf8)]
    assert words.number_lengths.tolist() == [len(number) for number in re.findall(rb"\d+", utf8)]


@given(TEXTS, st.text("abcé", min_size=1, max_size=12))
def test_a_words_hash_is_the_same_wherever_it_stands(before: str, word: str) -> None:
    alone = read_words(word.encode()).hashes
    assert alone.size == 1 and alone[0] < 2**HASH_BITS
    assert read_words(f"{before} {word.upper()} and more".encode()).hashes.tolist().count(alone[0]) >= word.isascii()


def test_long_words_that_begin_alike_are_told_apart_by_their_length() -> None:
    assert len(set(read_words(b"mathematics mathematical mathematically").hashes.tolist())) == 3


@pytest.mark.parametrize("group", GROUPS)
def test_the_words_of_a_group_are_counted(group: str) -> None:
    text = " ".join(GROUPS[group])
    assert read(Prompt(text)).features[NAMES.index(f"{group}_a_word")] == pytest.approx(1.0, abs=0.2)
