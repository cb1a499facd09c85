"""From logits to token ids, batched: penalties, the truncations, and a draw by a given uniform number."""

from torch import Tensor

from kernels.sampling import reference


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row and its id (the first among equals); the value is NaN where the row has a NaN."""
    return reference.greedy(logits)


def penalize(
    logits: Tensor, counts: Tensor, seen: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor
) -> None:
    """Lower the logits of tokens used before, in place, as OpenAI (presence, frequency) and HF (repetition) define.

    logits [n, vocab] fp32; counts [n, vocab] how often each id was generated; seen [n, vocab] bool: in the prompt or
    generated;
    presence, frequency, repetition [n, 1] fp32.
    """
    reference.penalize(logits, counts, seen, presence, frequency, repetition)


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw an id for each row from the truncated softmax(logits / temperature).

    logits [n, vocab] fp32; temperature [n] > 0; top_k [n] int64, 0 for all; top_p, min_p [n] fp32, 1 and 0 for all;
    uniform [n] fp64 in [0, 1): the only randomness, so that a row's draw does not depend on its neighbours. [n] int64.
    """
    return reference.sample(logits, temperature, top_k, top_p, min_p, uniform)
