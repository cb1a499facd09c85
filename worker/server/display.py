"""The extras that an answer shows besides its text, as requested with vLLM's fields."""

from dataclasses import dataclass

from protocol.requests import GenerationRequest


@dataclass(frozen=True, kw_only=True)
class Display:
    """skips_special: special tokens have no text. includes_stop: the stop string or token is part of the text.

    shows_ids: token ids stand beside the text. spells_ids: log-probabilities name tokens by their ids.
    num_prompt_top: how many likeliest tokens to report beside each prompt token; None for no prompt log-probabilities.
    """

    skips_special: bool = True
    includes_stop: bool = False
    shows_ids: bool = False
    spells_ids: bool = False
    num_prompt_top: int | None = None


def read_display(request: GenerationRequest, *, vocab_size: int) -> Display:
    return Display(
        skips_special=request.skip_special_tokens is not False,
        includes_stop=bool(request.include_stop_str_in_output),
        shows_ids=bool(request.return_token_ids),
        spells_ids=bool(request.return_tokens_as_token_ids),
        num_prompt_top=None if request.prompt_logprobs is None else at_most(request.prompt_logprobs, vocab_size),
    )


def at_most(number: int, vocab_size: int) -> int:
    """-1 means all."""
    return vocab_size if number == -1 else min(number, vocab_size)
