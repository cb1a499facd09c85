"""The weights of the complexity score: the format of a weights file and its validation.

A file consists of a magic string, a version, the SHA-256 of the body, and the body in MessagePack.
"""

import hashlib
import itertools
import math
from bisect import bisect
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.errors import BadWeights
from router.features import NAMES, Reading
from router.words import HASH_BITS

VERSION = 2
MAX_TREE_DEPTH = 8
_MARK = b"tiergate-router\n"
_HEAD_BYTES = len(_MARK) + 2 + hashlib.sha256().digest_size


class Content(msgspec.Struct, kw_only=True, frozen=True, array_like=False, forbid_unknown_fields=True):
    """Arrays are little-endian bytes. The trees are oblivious: all nodes of a level test the same condition."""

    note: str
    """How these weights were made."""
    feature_names: tuple[str, ...]
    word_gains: bytes
    """float16 [2**HASH_BITS]"""
    linear: bytes
    """float32 [features]: the score before any tree"""
    intercept: float
    tree_features: bytes
    """int16 [depth, trees]: the feature that each level tests"""
    tree_cuts: bytes
    """float32 [depth, trees]: the test is whether the feature is above this"""
    tree_gains: bytes
    """float32 [trees, 2**depth]: the gain of each leaf; the first level is the lowest bit of its index"""
    depth: int
    raw_knots: tuple[float, ...]
    """Raw scores, ascending; `probabilities` are the values at them, linear in between and constant outside."""
    probabilities: tuple[float, ...]
    quantiles: tuple[float, ...]
    """The scores below which 0 %, 1 %, ... 100 % of the held-out training prompts lie."""


class Weights:
    """The weights as arrays. Raises BadWeights for inconsistent content."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.word_gains = _array(content.word_gains, "<f2", (2**HASH_BITS,)).astype(np.float32)
        self.linear = _array(content.linear, "<f4", (len(NAMES),))
        if not 1 <= content.depth <= MAX_TREE_DEPTH:
            raise BadWeights(f"trees of depth {content.depth}; 1 to {MAX_TREE_DEPTH} can be read")
        self.tree_features = _array(content.tree_features, "<i2", (content.depth, -1)).astype(np.intp)
        shape = self.tree_features.shape
        self.tree_cuts = _array(content.tree_cuts, "<f4", shape)
        num_leaves = 2**content.depth
        self.tree_gains = _array(content.tree_gains, "<f4", (shape[1], num_leaves)).ravel()
        self.tree_starts = np.arange(shape[1], dtype=np.intp) * num_leaves
        self._check(content)

    def _check(self, content: Content) -> None:
        if content.feature_names != NAMES:
            raise BadWeights("they were trained for other features; train them again")
        if self.tree_features.size and not 0 <= self.tree_features.min() <= self.tree_features.max() < len(NAMES):
            raise BadWeights("a tree asks for a feature that does not exist")
        arrays = (
            self.word_gains,
            self.linear,
            self.tree_gains,
            np.array(content.raw_knots),
            np.array(content.quantiles),
        )
        if not all(np.isfinite(array).all() for array in arrays):
            raise BadWeights("a number in them is not finite")
        if not is_curve(content.raw_knots, content.probabilities):
            raise BadWeights("their calibration does not rise from 0 to 1")
        if len(content.quantiles) != 101 or not is_curve(content.quantiles, content.quantiles):
            raise BadWeights("their quantiles do not rise from 0 to 1")

    def probability(self, reading: Reading) -> float:
        """The share of prompts like this one on which the large model is right and the small one is wrong."""
        raw, knots, heights = self.raw_score(reading), self.content.raw_knots, self.content.probabilities
        after = bisect(knots, raw)
        if after in (0, len(knots)):
            return heights[min(after, len(knots) - 1)]
        # Linear interpolation by hand: numpy would take ten times as long.
        part = (raw - knots[after - 1]) / (knots[after] - knots[after - 1])
        return heights[after - 1] + part * (heights[after] - heights[after - 1])

    def raw_score(self, reading: Reading) -> float:
        """The expected gain, before calibration."""
        hashes, features = reading.words.hashes, reading.features
        features[-1] = np.add.reduce(self.word_gains.take(hashes)) / math.sqrt(max(1, hashes.size))
        above = features.take(self.tree_features) > self.tree_cuts
        leaves = np.packbits(above, axis=0, bitorder="little")[0]
        gains = np.add.reduce(self.tree_gains.take(leaves + self.tree_starts))
        return float(gains + features.dot(self.linear)) + self.content.intercept

    def threshold_for(self, large_share: float) -> float:
        """The score that a share `large_share` of prompts like the training prompts reaches.

        Threshold 0 sends all prompts to the large pool, 1 none."""
        if large_share <= 0.0:
            return 1.0
        return (
            0.0
            if large_share >= 1.0
            else float(np.interp(1.0 - large_share, np.linspace(0, 1, 101), self.content.quantiles))
        )


def is_curve(places: tuple[float, ...], heights: tuple[float, ...]) -> bool:
    """Whether places and heights do not fall, and heights are within 0..1."""
    if not places or len(places) != len(heights):
        return False
    is_rising = all(a <= b for curve in (places, heights) for a, b in itertools.pairwise(curve))
    return is_rising and heights[0] >= 0.0 and heights[-1] <= 1.0


def pack_weights(content: Content) -> bytes:
    body = msgspec.msgpack.encode(content)
    return _MARK + VERSION.to_bytes(2, "little") + hashlib.sha256(body).digest() + body


def read_weights(file: bytes) -> Weights:
    """Raises BadWeights with one line that says what is wrong."""
    if not file.startswith(_MARK):
        raise BadWeights("this is no file of router weights")
    version = int.from_bytes(file[len(_MARK) : len(_MARK) + 2], "little")
    if version != VERSION:
        raise BadWeights(f"they have version {version}, and this router reads version {VERSION}; train them again")
    body = file[_HEAD_BYTES:]
    if hashlib.sha256(body).digest() != file[len(_MARK) + 2 : _HEAD_BYTES]:
        raise BadWeights("the file is truncated or damaged: its checksum differs")
    try:
        return Weights(msgspec.msgpack.decode(body, type=Content))
    except msgspec.MsgspecError as error:
        raise BadWeights(f"the file cannot be read: {error}") from None


def _array(content: bytes, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        return np.frombuffer(content, kind).reshape(shape)
    except ValueError:
        raise BadWeights(f"an array of theirs is not of the shape {shape}") from None
