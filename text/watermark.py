"""A keyed watermark of sampled text (Kirchenbauer et al., 2023, "A Watermark for Large Language Models").

The previous token decides, by a keyed hash, which tokens are green: a share gamma of the vocabulary. A worker adds
delta to the logits of green tokens before it draws. A holder of the key counts the green tokens of a text, and tells
from their number whether it can be chance.
"""

import functools
import hashlib
import hmac
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_KEY_BYTES = 16
THRESHOLD = 4.0
"""A z-score that text without a watermark reaches once in 30,000 times."""
_KEPT_LISTS = 256


class KeyFileError(Exception):
    """One line naming the file."""


@dataclass(frozen=True, slots=True)
class Detection:
    """z: by how many standard deviations the green tokens exceed the number expected without a watermark."""

    num_scored: int
    num_green: int
    z: float

    @property
    def is_watermarked(self) -> bool:
        return self.z > THRESHOLD


class Watermark:
    def __init__(self, key: bytes, *, gamma: float, delta: float = 0.0) -> None:
        """gamma: in (0, 1). delta: needed for writing only."""
        self._key = key
        self._gamma = gamma
        self._delta = delta
        self._bound = np.uint64(min(2**64 - 1, int(gamma * 2.0**64)))
        self.bias = functools.lru_cache(maxsize=_KEPT_LISTS)(self._bias)
        """previous, vocab_size -> the bias of each logit, [vocab_size] fp32."""

    def is_green(self, previous: int, ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each of `ids` is green after `previous`."""
        salt = hmac.digest(self._key, previous.to_bytes(8), hashlib.sha256)[:8]
        return _mixed(ids ^ np.uint64(int.from_bytes(salt))) < self._bound

    def detect(self, token_ids: Sequence[int]) -> Detection:
        """The first token is not scored, since the one before it is not known. A pair that occurs again is scored once,
        since it would be green again."""
        pairs = set(itertools.pairwise(token_ids))
        num_green = sum(bool(self.is_green(before, np.array([token], np.uint64))[0]) for before, token in pairs)
        expected, spread = self._gamma * len(pairs), math.sqrt(len(pairs) * self._gamma * (1 - self._gamma))
        return Detection(len(pairs), num_green, (num_green - expected) / spread if pairs else 0.0)

    def _bias(self, previous: int, vocab_size: int) -> NDArray[np.float32]:
        green = self.is_green(previous, np.arange(vocab_size, dtype=np.uint64))
        return green.astype(np.float32) * np.float32(self._delta)


def read_watermark(path: Path, *, gamma: float, delta: float = 0.0) -> Watermark:
    """Raises KeyFileError."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    if len(key) < MIN_KEY_BYTES:
        raise KeyFileError(f"{path}: a key has at least {MIN_KEY_BYTES} bytes; write one with `openssl rand -hex 32`")
    return Watermark(key, gamma=gamma, delta=delta)


def _mixed(values: NDArray[np.uint64]) -> NDArray[Any]:
    """The finalizer of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
