"""Log-probabilities of a prompt's own tokens, read from the model's states while the prompt is computed in chunks."""

from torch import Tensor, tensor

from worker.engine.request import TokenLogprobs
from worker.engine.sequence import Chunk, Sequence
from worker.engine.token_logprobs import Wish, read_logprobs, wish_of
from worker.model.llama import LlamaModel

_MAX_ROWS = 256
"""Rows of logits at a time: those of all tokens of a long chunk would take gigabytes with a large vocabulary."""


def is_wanted(chunk: Chunk) -> bool:
    return bool(_rows(chunk))


def score_prompts(chunks: list[Chunk], x: Tensor, model: LlamaModel) -> dict[Sequence, list[TokenLogprobs]]:
    """The log-probabilities that this step adds to `Sequence.prompt_logprobs`, for requests that want them.

    x [tokens, hidden]: the step's states after the last layer, chunk after chunk. Changes nothing, so that a step can
    be computed again.
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
    """The chunk's tokens whose states tell how likely the next prompt or given token was, if not scored already."""
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
    """The wish for the token at `place`: one of the prompt, or one that another replica generated for the answer."""
    sampling = sequence.request.sampling
    if place < sequence.num_prompt:
        return Wish(sampling.prompt_logprobs or 0, has_rank=True)
    return wish_of(sampling) or Wish()
