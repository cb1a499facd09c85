"""Log-probabilities of a prompt's own tokens, read from the model's states while the prompt is computed in chunks."""

from torch import Tensor, tensor

from worker.engine.request import TokenLogprobs
from worker.engine.sequence import Chunk, Sequence
from worker.engine.token_logprobs import Wish, read_logprobs, wish_of
from worker.model.llama import LlamaModel

_MAX_ROWS = 256
"""A row of logits for each token of a long chunk would take gigabytes with a large vocabulary."""


def is_wanted(chunk: Chunk) -> bool:
    return bool(_rows(chunk))


def score_prompts(chunks: list[Chunk], x: Tensor, model: LlamaModel) -> dict[Sequence, list[TokenLogprobs]]:
    """What this step adds to `Sequence.prompt_logprobs`, for those whose request wants them.

    x [tokens, hidden]: the step's states after the last layer, chunk after chunk. Nothing is changed, so that a step
    can be computed again.
    """
    scored = {}
    offset = 0
    for chunk in chunks:
        rows = _rows(chunk)
        if rows:
            scored[chunk.sequence] = _score(chunk, x[offset : offset + chunk.num_tokens], rows, model)
        offset += chunk.num_tokens
    return scored


def _rows(chunk: Chunk) -> range:
    """Of the chunk's tokens those that tell how likely the prompt's next one was, and have not told it yet."""
    sequence = chunk.sequence
    if sequence.request.sampling.prompt_logprobs is None:
        return range(0)
    first = max(len(sequence.prompt_logprobs) - sequence.num_computed, 0)
    return range(first, min(chunk.num_tokens, sequence.num_begun - 1 - sequence.num_computed))


def _score(chunk: Chunk, x: Tensor, rows: range, model: LlamaModel) -> list[TokenLogprobs]:
    sequence, start = chunk.sequence, chunk.sequence.num_computed
    found: list[TokenLogprobs] = []
    for first in range(rows.start, rows.stop, _MAX_ROWS):
        last = min(first + _MAX_ROWS, rows.stop)
        following = tensor(sequence.token_ids[start + first + 1 : start + last + 1], device=x.device)
        wishes = [_wish(sequence, start + row + 1) for row in range(first, last)]
        found += read_logprobs(model.logits(x[first:last]), following, wishes)
    return found


def _wish(sequence: Sequence, place: int) -> Wish:
    """Of the token there: one of the prompt, or one that another replica made for the answer."""
    sampling = sequence.request.sampling
    if place < sequence.num_prompt:
        return Wish(sampling.prompt_logprobs or 0, has_rank=True)
    return wish_of(sampling) or Wish()
