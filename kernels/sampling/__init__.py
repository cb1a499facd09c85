"""From logits to token ids, batched: penalties, truncations, a draw by a given uniform number; log-probabilities."""

import torch
from torch import Tensor

from kernels.sampling import native, reference


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row and its id (the first among equals); the value is NaN where the row has a NaN."""
    return reference.greedy(logits)


def penalize(
    logits: Tensor, rows: Tensor, ids: Tensor, counts: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor
) -> None:
    """Lower the logits of tokens used before, in place, as OpenAI (presence, frequency) and HF (repetition) define.

    logits [n, vocab] fp32; rows, ids [used] int64: the distinct pairs of a row and an id in its prompt or answer;
    counts [used] int64: how often the answer has it; presence, frequency, repetition [used] fp32: those of its row.
    """
    reference.penalize(logits, rows, ids, counts, presence, frequency, repetition)


def forbid(logits: Tensor, rows: list[int], allowed: Tensor) -> None:
    """Set the logits of tokens that a row must not choose to -inf, in place.

    logits [n, vocab] fp32; rows: the rows to mask, ascending; allowed [len(rows), any] int32, dense, on the CPU: bit
    t % 32 of word t // 32 tells whether token t may be chosen.
    """
    reference.forbid(logits, rows, allowed)


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw an id for each row from the truncated softmax(logits / temperature).

    logits [n, vocab] fp32; temperature [n] > 0; top_k [n] int64, 0 for all; top_p, min_p [n] fp32, 1 and 0 for all;
    uniform [n] fp64 in [0, 1): the only randomness, so that a row's draw does not depend on its neighbours. [n] int64.
    A row with a NaN gets some id. Raises ValueError on a shape, dtype or stride mismatch.
    """
    parameters = ((temperature, torch.float32), (top_k, torch.int64), (top_p, torch.float32), (min_p, torch.float32))
    for values, dtype in (*parameters, (uniform, torch.float64)):
        if values.shape != logits.shape[:1] or values.dtype != dtype or not values.is_contiguous():
            raise ValueError(
                f"sample: {tuple(values.shape)} {values.dtype} is not dense {dtype} for {len(logits)} rows"
            )
    draw = native.sample if native.can_run(logits) else reference.sample
    return draw(logits, temperature, top_k, top_p, min_p, uniform)


def logprobs(logits: Tensor, ids: Tensor, *, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """log softmax at ids, [n]; the num_top largest of each row, descending, and their ids, [n, num_top].

    logits [n, vocab] fp32; ids [n] int64.
    """
    return reference.logprobs(logits, ids, num_top=num_top)
