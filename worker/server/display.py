"""What an answer shows besides its text, as vLLM's fields ask for it."""

from dataclasses import dataclass

from protocol.requests import GenerationRequest


@dataclass(frozen=True, kw_only=True)
class Display:
    """skips_special: special tokens have no text. includes_stop: what ended the answer is part of its text.

    shows_ids: token ids beside the text. spells_ids: log-probabilities name tokens by their ids.
    num_prompt_top: how many log-probabilities beside each of the prompt's tokens; None for none at all.
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
