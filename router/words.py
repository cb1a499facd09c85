"""A text as runs of letters and digits with a hash for each word, in a few numpy calls whatever its language.

A letter is an ASCII letter or any byte of a character beyond ASCII. The hash of a word is the polynomial of its bytes
in lower case; the hashes of all words come from one prefix sum, divided by the power of the word's place:

    prefix[i] = sum of byte[j] * BASE**j for j < i        (modulo 2**32)
    hash      = (prefix[end] - prefix[start]) * BASE**-start
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HASH_BITS = 15
MAX_BYTES = 4 * 4096 + 2
"""The longest text that is read: 4,096 characters of at most four bytes, and an edge on both sides."""

_EDGE, _LETTER, _DIGIT = 0, 1, 2
_BASE = 0x9E3779B1
_MIX = 0x85EBCA6B
_PAIR = 0xC2B2AE35


def _powers(base: int) -> NDArray[np.uint32]:
    steps = np.full(MAX_BYTES, base, dtype=np.uint32)
    steps[0] = 1
    return np.multiply.accumulate(steps, dtype=np.uint32)


_POWERS = _powers(_BASE)
_INVERSES = _powers(pow(_BASE, -1, 2**32))
_LOWER = bytes(range(256)).lower()
_KINDS = bytes(
    _LETTER if byte >= 128 or chr(byte).isalpha() else _DIGIT if chr(byte).isdigit() else _EDGE for byte in range(256)
)


@dataclass(frozen=True, slots=True)
class Words:
    """lengths of words and number_lengths are in bytes.

    hashes has one for each word, all_hashes also one for each pair of neighbours; both are below 2**HASH_BITS.
    """

    lengths: NDArray[np.intp]
    number_lengths: NDArray[np.intp]
    hashes: NDArray[np.uint32]
    all_hashes: NDArray[np.uint32]


def read_words(utf8: bytes) -> Words:
    framed = b"\0" + utf8 + b"\0"
    kinds = np.frombuffer(framed.translate(_KINDS), np.uint8)
    edges = (kinds[1:] != kinds[:-1]).nonzero()[0] + 1
    kind_of_run, lengths = kinds[edges[:-1]], edges[1:] - edges[:-1]
    # Places rather than masks: to take is several times faster than to select.
    word_places = (kind_of_run == _LETTER).nonzero()[0]
    starts, word_lengths = edges.take(word_places), lengths.take(word_places)
    lower = np.frombuffer(framed.translate(_LOWER), np.uint8)
    prefix = np.add.accumulate(lower * _POWERS[: lower.size], dtype=np.uint32)
    # Inclusive sums: the byte before the word is the last that does not count.
    full = (prefix.take(starts + (word_lengths - 1)) - prefix.take(starts - 1)) * _INVERSES.take(starts)
    pairs = full[:-1] * np.uint32(_PAIR) + full[1:]
    all_hashes = _bucket(np.concatenate((full, pairs)))
    return Words(word_lengths, lengths.take((kind_of_run == _DIGIT).nonzero()[0]), all_hashes[: full.size], all_hashes)


def _bucket(full: NDArray[np.uint32]) -> NDArray[np.uint32]:
    mixed = (full ^ (full >> np.uint32(15))) * np.uint32(_MIX)
    return mixed >> np.uint32(32 - HASH_BITS)
