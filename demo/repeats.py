"""Repeated random tokens, which teach a new model to copy before it sees any conversation.

Names, schemas and quoted words are answered by copying. The circuit for it (induction heads: Olsson et al., 2022) forms
within a few hundred steps on repeated random tokens, if there are few distinct ones at first; on conversations alone it
took thousands. The number of distinct tokens then grows to the whole vocabulary, so that any token can be copied. Last
come words repeated in their other form: ` Omar` in a sentence is one token, `Omar` after a quote is two others.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from demo.batches import Batch

FIRST_TOKEN, NUM_FIRST_KINDS = 5, 100
MIN_SPAN, MAX_SPAN, MAX_AGO = 3, 16, 6
WIDTHS = (64, 64, 128, 256)
Pair = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Word:
    """Token ids of a word inside a sentence, and of the same word after a line break or a quote."""

    inside: list[int]
    first: list[int]


class Repeats:
    """Batches of rows of spans. Each new span is followed by one that is predictable except for its first token."""

    def __init__(self, tokenizer: Tokenizer, *, num_steps: int, max_tokens: int, seed: int) -> None:
        self.num_steps, self.max_tokens, self.seed = num_steps, max_tokens, seed
        self.vocab = tokenizer.get_vocab_size()
        self.words = read_words(tokenizer)
        self.inside_marks, self.first_marks = (
            [tokenizer.encode(text).ids for text in texts] for texts in ((":", ","), ('"', "\n"))
        )

    def num_kinds(self, step: int) -> int:
        """The number of distinct tokens at a step: few in the first half, then growing by a constant factor, and all in
        the last quarter."""
        progress = (step - self.num_steps / 2) / (self.num_steps / 4)
        return round(NUM_FIRST_KINDS * (self.vocab / NUM_FIRST_KINDS) ** min(1.0, max(0.0, progress)))

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng((self.seed, step))
        is_early, is_late = step < self.num_steps // 2, step >= self.num_steps * 3 // 4
        width = WIDTHS[0] if is_early else int(rng.choice(WIDTHS))
        ids = np.zeros((self.max_tokens // width, width), np.int64)
        is_known = np.zeros(ids.shape, bool)
        for row, known in zip(ids, is_known, strict=True):
            if is_late and rng.random() < 0.5:
                pairs = self._words_in_both_forms(rng)
            else:
                last = min(self.vocab, FIRST_TOKEN + self.num_kinds(step))
                pairs = self._spans_again(rng, last=last, max_ago=1 if is_early else MAX_AGO)
            at = 0
            while at < width:
                for span, is_again in zip(next(pairs), (False, True), strict=True):
                    end = min(width, at + len(span))
                    row[at:end] = span[: max(0, end - at)]
                    known[at + 1 : end] = is_again
                    at = end
        flat = is_known.reshape(-1).nonzero()[0]
        return Batch(torch.from_numpy(ids), torch.from_numpy(flat - 1), torch.from_numpy(ids.reshape(-1)[flat]))

    def _spans_again(self, rng: np.random.Generator, *, last: int, max_ago: int) -> Iterator[Pair]:
        """Pairs of a new span of tokens below `last`, and a repetition of one of the newest `max_ago` spans."""
        spans: list[list[int]] = []
        while True:
            spans.append(rng.integers(FIRST_TOKEN, last, rng.integers(MIN_SPAN, MAX_SPAN + 1)).tolist())
            yield spans[-1], spans[-rng.integers(1, min(max_ago, len(spans)) + 1)]

    def _words_in_both_forms(self, rng: np.random.Generator) -> Iterator[Pair]:
        """Pairs of a mark, a word and some tokens, and the same with the word's other form after another mark."""
        while True:
            word = self.words[rng.integers(len(self.words))]
            rest = rng.integers(FIRST_TOKEN, self.vocab, rng.integers(2, 9)).tolist()
            inside = [*self.inside_marks[rng.integers(len(self.inside_marks))], *word.inside, *rest]
            first = [*self.first_marks[rng.integers(len(self.first_marks))], *word.first, *rest]
            yield (inside, first) if rng.random() < 0.6 else (first, inside)


def read_words(tokenizer: Tokenizer) -> list[Word]:
    """The words of the vocabulary whose token includes the leading space, in both forms."""
    words = []
    for token_id in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token_id])
        if text.startswith(" ") and text[1:].isalpha():
            words.append(Word([token_id], tokenizer.encode(text[1:]).ids))
    return words
