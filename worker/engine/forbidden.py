"""Tokens that an answer must not go on with: bad words, as vLLM knows them, and all but the allowed ones."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from worker.engine.request import SamplingParams
from worker.engine.sequence import Sequence


def forbidden_ids(sequence: Sequence) -> list[int]:
    """The last tokens of bad words whose other tokens the answer ends with.

    Where they would leave nothing of what is allowed, none is forbidden.
    """
    sampling, said = sequence.request.sampling, sequence.token_ids
    found = [word[-1] for word in sampling.bad_words if _ends_with(said, word, sequence.num_prompt)]
    allowed = sampling.allowed_token_ids
    return [] if allowed is not None and set(allowed) <= set(found) else found


def allowed_words(sequence: Sequence, forbidden: list[int], vocab_size: int) -> NDArray[np.int32]:
    """As `Masks.words`: the tokens that are allowed without a grammar, less the forbidden ones."""
    allowed = sequence.request.sampling.allowed_token_ids
    bits = np.full(-(-vocab_size // 32) * 32, allowed is None)
    if allowed is not None:
        bits[allowed] = True
    bits[forbidden] = False
    return np.packbits(bits, bitorder="little").view(np.int32)


def leaves_nothing(sequence: Sequence, eos_token_ids: Iterable[int]) -> bool:
    """Whether its grammar and its other limits together allow no token, whatever the model computes; not where the
    grammar's engine gave up."""
    sampling, matcher = sequence.request.sampling, sequence.matcher
    if matcher is not None and matcher.error:
        return False
    left = None if sampling.allowed_token_ids is None else set(sampling.allowed_token_ids)
    if matcher is not None:
        left = matcher.next_ids() if left is None else left & matcher.next_ids()
    if left is None:
        return False
    if sequence.must_not_end:
        left -= {*eos_token_ids, *sampling.stop_token_ids}
    return left <= set(forbidden_ids(sequence))


def limiting_field(sampling: SamplingParams) -> str | None:
    """The field that leaves no token, where it can be told."""
    fields = {"allowed_token_ids": sampling.allowed_token_ids, "bad_words": sampling.bad_words}
    return next((name for name, value in fields.items() if value), "min_tokens" if sampling.min_tokens else None)


def _ends_with(said: list[int], word: tuple[int, ...], num_prompt: int) -> bool:
    """Whether the answer, the tokens from num_prompt on, ends with all of a word but its last token."""
    num_before = len(word) - 1
    if num_before > len(said) - num_prompt:
        return False
    return tuple(said[len(said) - num_before :]) == word[:-1]
