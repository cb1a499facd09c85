"""Numeric features of a prompt: its length, words, signs and enumerations, and its conversation."""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.vocabulary import GROUPS
from router.words import HASH_BITS, Words, read_words

MAX_SCANNED_CHARS = 4096
_MAX_LINES = 64
_MAX_RULES = 3
_SEEN_PLACES = 4096

_SIGNS = {
    "upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "digits": "0123456789",
    "commas": ",",
    "stops": ".!",
    "questions": "?",
    "operators": "=<>^+/|~",
    "products": "*",
    "dollars": "$",
    "percents": "%",
    "brackets": "()[]",
    "quotes": '"',
    "apostrophes": "'",
    "hyphens": "-",
    "underscores": "_",
    "program_signs": "{};`\\#",
    "newlines": "\n",
}
_WORD_LENGTHS = {"letters": (1, 1), "short_words": (2, 3), "long_words": (9, 11), "longest_words": (12, 99)}
COUNTED = (*_SIGNS, "beyond_ascii", *_WORD_LENGTHS, *GROUPS, "distinct_words", "numbers")
SHAPES = (
    "options", "option_spread", "option_digits",
    "longest_number", "number_length", "sentence_words", "word_length", "user_turns",
)  # fmt: skip
LINEAR = ("log_chars", "open_log_chars", "rule_constraints")
"""Used by the linear part only: trees that saw the length would learn how long exam questions are."""
NAMES = (*(f"{name}_a_word" for name in COUNTED), *SHAPES, *LINEAR, "word_gain")
PLACE = {name: place for place, name in enumerate(NAMES)}
COUNT = {name: place for place, name in enumerate(COUNTED)}


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """The text to score: the last user message. `rules`: the system messages; `num_chars`: of the whole conversation.

    has_tools: a tool is offered or was called; has_schema: the answer must follow a schema.
    """

    text: str
    rules: str = ""
    num_chars: int = 0
    num_user_turns: int = 1
    has_tools: bool = False
    has_schema: bool = False


class Reading(msgspec.Struct, frozen=True, gc=False):
    """counts: float64 [COUNTED]. features: float32 [NAMES]; the weights fill in the last one. words: of the text."""

    counts: NDArray[np.float64]
    features: NDArray[np.float32]
    words: Words


def read(prompt: Prompt) -> Reading:
    text = excerpt(prompt.text)
    # A lone surrogate, which JSON may contain, is treated like any other character.
    utf8 = text.encode("utf-8", "surrogatepass")
    words = read_words(utf8)
    num_words, num_numbers = max(1, words.lengths.size), words.number_lengths.size
    counts = np.concatenate(
        (
            _count_signs(utf8),
            _count_lengths(words),
            _count_groups(words),
            (_count_distinct(words), num_numbers),
        )
    )
    rule_constraints = 0.0
    if prompt.rules:
        rules = read_words(excerpt(prompt.rules).encode("utf-8", "surrogatepass"))
        rule_constraints = math.log1p(min(_MAX_RULES, _count_groups(rules)[_CONSTRAINTS]))
    num_options, spread, with_digits = _enumeration(text)
    log_chars = math.log1p(len(prompt.text))
    shape = (
        num_options,
        spread,
        with_digits,
        max(words.number_lengths.tolist(), default=0),
        counts.item(COUNT["digits"]) / max(1, num_numbers),
        num_words / max(1, counts.item(COUNT["stops"]) + counts.item(COUNT["questions"])),
        int(np.add.reduce(words.lengths)) / num_words,
        prompt.num_user_turns,
        log_chars,
        0.0 if num_options else log_chars,
        rule_constraints,
        0.0,
    )
    return Reading(counts, np.concatenate((counts / num_words, shape), dtype=np.float32), words)


def excerpt(text: str) -> str:
    """A short text in full; head and tail of a long one, where the task usually is."""
    if len(text) <= MAX_SCANNED_CHARS:
        return text
    half = MAX_SCANNED_CHARS // 2
    return f"{text[:half]}\n{text[-half + 1 :]}"


def _sign_matrix() -> NDArray[np.float64]:
    """[bytes, signs]; a non-ASCII character is counted by its first byte."""
    matrix = np.zeros((256, len(_SIGNS) + 1))
    for column, signs in enumerate(_SIGNS.values()):
        matrix[list(signs.encode()), column] = 1.0
    matrix[192:, -1] = 1.0
    return matrix


def _length_classes() -> NDArray[np.uint8]:
    classes = np.zeros(_WORD_LENGTHS["longest_words"][0] + 1, dtype=np.uint8)
    for number, (low, high) in enumerate(_WORD_LENGTHS.values(), start=1):
        classes[low : high + 1] = number
    return classes


def _group_tables() -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The index of the set of groups of each hash, and [sets, groups]: which groups are in each set."""
    bits = np.zeros(2**HASH_BITS, dtype=np.uint32)
    for number, words in enumerate(GROUPS.values()):
        bits[read_words(" ".join(words).encode()).hashes] |= np.uint32(1 << number)
    sets, set_of = np.unique(bits, return_inverse=True)
    return set_of.astype(np.uint8), np.array(
        [[bits >> each & 1 for each in range(len(GROUPS))] for bits in sets.tolist()], float
    )


_SIGN_MATRIX, _LENGTH_CLASSES = _sign_matrix(), _length_classes()
_GROUP_SET, _SET_MATRIX = _group_tables()
_CONSTRAINTS = list(GROUPS).index("constraints")


def _count_signs(utf8: bytes) -> NDArray[np.float64]:
    counts: NDArray[np.float64] = np.bincount(np.frombuffer(utf8, np.uint8), minlength=256).dot(_SIGN_MATRIX)
    return counts


def _count_lengths(words: Words) -> NDArray[np.intp]:
    classes = _LENGTH_CLASSES.take(words.lengths, mode="clip")
    return np.bincount(classes, minlength=len(_WORD_LENGTHS) + 1)[1:]


def _count_distinct(words: Words) -> int:
    # In a long text about 5 % of the words collide in this small table; a table for all hashes would cost more.
    is_seen = np.zeros(_SEEN_PLACES, dtype=np.bool_)
    is_seen[words.hashes & (_SEEN_PLACES - 1)] = True
    return int(np.count_nonzero(is_seen))


def _count_groups(words: Words) -> NDArray[np.float64]:
    counts: NDArray[np.float64] = np.bincount(_GROUP_SET.take(words.hashes), minlength=len(_SET_MATRIX)).dot(
        _SET_MATRIX
    )
    return counts


_WITHOUT_DIGITS = str.maketrans("", "", "0123456789")


def _enumeration(text: str) -> tuple[int, float, float]:
    """Lines like `A. this` or `2) that`: their number, relative spread of lengths, and the share that has digits."""
    options = [line for line in text.split("\n", _MAX_LINES) if line[1:3] in (". ", ") ") and line[0].isalnum()]
    if len(options) < 2:
        return 0, 0.0, 0.0
    lengths, num = [len(line) for line in options], len(options)
    spread = (max(lengths) - min(lengths)) * num / sum(lengths)
    with_digits = sum([line.translate(_WITHOUT_DIGITS) != line for line in options])
    return num, spread, with_digits / num
