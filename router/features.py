"""What a prompt looks like, as numbers: its length, its words, its signs, its enumerations and its conversation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.vocabulary import GROUPS
from router.words import HASH_BITS, Words, read_words

MAX_SCANNED_CHARS = 4096
_MAX_LINES = 64
_MAX_RULES = 3
_MAX_WORD_LENGTH = 15

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
_WORD_LENGTHS = {
    "letters": (1, 1),
    "short_words": (0, 3),
    "long_words": (9, _MAX_WORD_LENGTH),
    "longest_words": (12, 99),
}
COUNTED = (*_SIGNS, "beyond_ascii", *GROUPS, *_WORD_LENGTHS, "distinct_words", "numbers")
"""Each becomes two features: the logarithm of its number, and its number for each word."""
NAMES = (
    *(f"log_{name}" for name in COUNTED),
    *(f"{name}_a_word" for name in COUNTED),
    "log_words", "word_length", "log_longest_number",
    "options", "log_stem", "log_option", "option_spread", "option_digits",
    "log_chars", "open_log_chars", "log_conversation", "user_turns", "log_rule_constraints", "word_gain",
)  # fmt: skip
PLACE = {name: place for place, name in enumerate(NAMES)}
COUNT = {name: place for place, name in enumerate(COUNTED)}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is scored: the last user message. `rules`: the system messages; `num_chars`: of the whole conversation.

    has_tools: any is offered or was called; has_schema: the answer has to follow one.
    """

    text: str
    rules: str = ""
    num_chars: int = 0
    num_user_turns: int = 1
    has_tools: bool = False
    has_schema: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """counts float64 [COUNTED], features float32 [NAMES] but for the last, which the weights add; words of the text."""

    counts: NDArray[np.float64]
    features: NDArray[np.float32]
    words: Words


def read(prompt: Prompt) -> Reading:
    text = excerpt(prompt.text)
    # Half a surrogate pair, which JSON may carry, is a character like any other.
    utf8 = text.encode("utf-8", "surrogatepass")
    words = read_words(utf8)
    num_words = max(1, words.lengths.size)
    counts = np.concatenate((_count_signs(utf8), _count_words(words)))
    num_rule_constraints = 0.0
    if prompt.rules:
        rules = read_words(excerpt(prompt.rules).encode("utf-8", "surrogatepass"))
        num_rule_constraints = min(_MAX_RULES, _count_groups(rules)[_CONSTRAINTS])
    options = _enumeration(text)
    shape = (
        words.lengths.size, 0, max(words.number_lengths.tolist(), default=0), *options,
        len(prompt.text), 0 if options[0] else len(prompt.text), max(len(prompt.text), prompt.num_chars),
        prompt.num_user_turns, num_rule_constraints, 0,
    )  # fmt: skip
    values = np.array(shape, dtype=np.float64)
    values[_LOG_SHAPES] = np.log1p(values[_LOG_SHAPES])
    values[1] = words.lengths.sum() / num_words
    return Reading(counts, np.concatenate((np.log1p(counts), counts / num_words, values), dtype=np.float32), words)


def excerpt(text: str) -> str:
    """All of a short text; head and tail of a long one, where the task usually stands."""
    if len(text) <= MAX_SCANNED_CHARS:
        return text
    half = MAX_SCANNED_CHARS // 2
    return f"{text[:half]}\n{text[-half + 1 :]}"


_NUM_SHAPES = len(NAMES) - 2 * len(COUNTED)
_LOG_SHAPES = np.array([0, 2, 4, 5, 8, 9, 10, 12])


def _sign_matrix() -> NDArray[np.float64]:
    matrix = np.zeros((256, len(_SIGNS) + 1))
    for column, signs in enumerate(_SIGNS.values()):
        matrix[list(signs.encode()), column] = 1.0
    matrix[192:, -1] = 1.0  # the first byte of each character beyond ASCII
    return matrix


def _length_matrix() -> NDArray[np.float64]:
    lengths = np.arange(_MAX_WORD_LENGTH + 1)
    return np.stack([(lengths >= low) & (lengths <= high) for low, high in _WORD_LENGTHS.values()], axis=1).astype(
        float
    )


def _group_tables() -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """For each hash the number of its set of groups, and for each such set [sets, groups] which groups are in it."""
    bits = np.zeros(2**HASH_BITS, dtype=np.uint32)
    for number, words in enumerate(GROUPS.values()):
        bits[read_words(" ".join(words).encode()).hashes] |= np.uint32(1 << number)
    sets, set_of = np.unique(bits, return_inverse=True)
    return set_of.astype(np.uint8), np.array(
        [[bits >> each & 1 for each in range(len(GROUPS))] for bits in sets.tolist()], float
    )


_SIGN_MATRIX, _LENGTH_MATRIX = _sign_matrix(), _length_matrix()
_GROUP_SET, _SET_MATRIX = _group_tables()
_CONSTRAINTS = list(GROUPS).index("constraints")


def _count_signs(utf8: bytes) -> NDArray[np.float64]:
    return np.bincount(np.frombuffer(utf8, np.uint8), minlength=256) @ _SIGN_MATRIX


def _count_words(words: Words) -> NDArray[np.float64]:
    lengths = np.bincount(np.minimum(words.lengths, _MAX_WORD_LENGTH), minlength=_MAX_WORD_LENGTH + 1) @ _LENGTH_MATRIX
    return np.concatenate((_count_groups(words), lengths, (_count_distinct(words), words.number_lengths.size)))


def _count_distinct(words: Words) -> int:
    is_seen = np.zeros(2**HASH_BITS, dtype=np.bool_)
    is_seen[words.hashes] = True
    return int(np.count_nonzero(is_seen))


def _count_groups(words: Words) -> NDArray[np.float64]:
    return np.bincount(_GROUP_SET.take(words.hashes), minlength=len(_SET_MATRIX)) @ _SET_MATRIX


_WITHOUT_DIGITS = str.maketrans("", "", "0123456789")


def _enumeration(text: str) -> tuple[float, float, float, float, float]:
    """Lines like `A. this` or `2) that`: how many, how long the rest and they are, their spread, their digits."""
    options = [line for line in text.split("\n", _MAX_LINES) if line[1:3] in (". ", ") ") and line[0].isalnum()]
    if len(options) < 2:
        return 0.0, float(len(text)), 0.0, 0.0, 0.0
    lengths = [len(line) for line in options]
    num, total = len(options), sum(lengths)
    spread = (max(lengths) - min(lengths)) * num / total
    with_digits = sum([line.translate(_WITHOUT_DIGITS) != line for line in options])
    return float(num), float(len(text) - total), total / num, spread, with_digits / num
