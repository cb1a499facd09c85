"""Tokens that must not come next in an answer: ends of bad words, as in vLLM, and all but the allowed tokens."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from worker.engine.request import SamplingParams
from worker.engine.sequence import Sequence


def forbidden_ids(sequence: Sequence) -> list[int]:
    """The last token of each bad word whose other tokens the answer ends with.

    None is forbidden if that would leave none of the allowed tokens.
    """
    sampling, said = sequence.request.sampling, sequence.token_ids
    found = [word[-1] for word in sampling.bad_words if _ends_with(said, word, sequence.num_prompt)]
    allowed = sampling.allowed_token_ids
    return [] if allowed is not None and set(allowed) <= set(found) else found


def allowed_words(sequence: Sequence, forbidden: list[int], vocab_size: int) -> NDArray[np.int32]:
    """As in `Masks.words`: the tokens that are allowed without a grammar, less the forbidden ones."""
    allowed = sequence.request.sampling.allowed_token_ids
    bits = np.full(-(-vocab_size // 32) * 32, allowed is None)
    if allowed is not None:
        bits[allowed] = True
    bits[forbidden] = False
    return np.packbits(bits, bitorder="little").view(np.int32)


def leaves_nothing(sequence: Sequence, eos_token_ids: Iterable[int]) -> bool:
    """Whether the sequence's grammar and other limits together allow no token, whatever the model computes. False if
    the grammar engine gave up."""
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
    """The request's field that leaves no token, if it can be identified."""
    fields = {"allowed_token_ids": sampling.allowed_token_ids, "bad_words": sampling.bad_words}
    return next((name for name, value in fields.items() if value), "min_tokens" if sampling.min_tokens else None)


def _ends_with(said: list[int], word: tuple[int, ...], num_prompt: int) -> bool:
    """Whether the answer, the tokens from num_prompt on, ends with all of a word but its last token."""
    num_before = len(word) - 1
    if num_before > len(said) - num_prompt:
        return False
    return tuple(said[len(said) - num_before :]) == word[:-1]
