"""Splits a text into runs of letters and digits and hashes each word, in a few numpy calls, whatever its language.

A letter is an ASCII letter or any byte of a non-ASCII character. The hash of a word depends on its first eight bytes in
lower case and its length; longer words that share both get the same hash.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

HASH_BITS = 15

_EDGE, _LETTER, _DIGIT = 0, 1, 2
_HASHED_BYTES = 8
_TAIL = bytes(_HASHED_BYTES)
_LONGEST = 32
"""Maximum word length that is distinguished in a hash."""
_SHIFT = np.uint64(64 - HASH_BITS)
# By word length: a mask of the word's own bytes among the eight, and the factor of its hash.
_OWN_BYTES = np.array([2 ** (8 * min(length, _HASHED_BYTES)) - 1 for length in range(_LONGEST + 1)], np.uint64)
_FACTORS = np.array([0x9E3779B97F4A7C15 * (2 * length + 1) % 2**64 for length in range(_LONGEST + 1)], np.uint64)
_LOWER = bytes(range(256)).lower()
_KINDS = bytes(
    _LETTER if byte >= 128 or chr(byte).isalpha() else _DIGIT if chr(byte).isdigit() else _EDGE for byte in range(256)
)


class Words(msgspec.Struct, frozen=True, gc=False):
    """lengths (of words) and number_lengths are in bytes; hashes, one per word, are below 2**HASH_BITS."""

    lengths: NDArray[np.intp]
    number_lengths: NDArray[np.intp]
    hashes: NDArray[np.intp]


def read_words(utf8: bytes) -> Words:
    framed = b"\0" + utf8 + _TAIL
    kinds = np.frombuffer(framed.translate(_KINDS), np.uint8)
    # A run begins one byte after its edge, so all arrays below are read from the second byte on.
    edges = (kinds[1:] != kinds[:-1]).nonzero()[0]
    kind_of_run, lengths = kinds[1:].take(edges[:-1]), edges[1:] - edges[:-1]
    # Index arrays instead of masks: `take` is several times faster than boolean selection.
    word_places = (kind_of_run == _LETTER).nonzero()[0]
    starts, word_lengths = edges.take(word_places), lengths.take(word_places)
    full = _eights(framed.translate(_LOWER))[starts]
    full &= _OWN_BYTES.take(word_lengths, mode="clip")
    full *= _FACTORS.take(word_lengths, mode="clip")
    full >>= _SHIFT
    return Words(word_lengths, lengths.take((kind_of_run == _DIGIT).nonzero()[0]), full.view(np.intp))


def _eights(framed: bytes) -> NDArray[np.uint64]:
    """For each byte but the first: the byte and the seven after it as one number. An overlapping view."""
    return np.ndarray((len(framed) - _HASHED_BYTES,), "<u8", framed, offset=1, strides=(1,))
