"""The next token of each row of a step, on the GPU: every parameter is a tensor, so that a graph can repeat it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import gpu
from kernels.sampling import reference

IN_PROMPT = 1 << 30
"""In `StepParameters.counts`: the prompt has the token. What is left counts how often the answer has it."""


@dataclass(frozen=True, slots=True)
class StepParameters:
    """All on the GPU and dense; n rows.

    temperature (below 1e-5: the likeliest token), top_p, min_p, presence, frequency, repetition [n] fp32; top_k [n]
    int32, 0 for all; uniform [n] fp64.
    slots [n] int32, distinct: the rows of `counts` [any, vocab] int32, which are read where a row has a penalty and
    grow by the chosen token; -1 for a row without. biases of row i: those from bias_starts[i] to bias_starts[i + 1] - 1
    of bias_ids (int32, distinct in a row) and bias_values (fp32, -inf forbids). allowed [n, any] int32: bit t % 32 of
    word t // 32 tells whether token t may be chosen.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor
    presence: Tensor
    frequency: Tensor
    repetition: Tensor
    slots: Tensor
    counts: Tensor
    bias_starts: Tensor
    bias_ids: Tensor
    bias_values: Tensor
    allowed: Tensor


def choose(logits: Tensor, parameters: StepParameters) -> Tensor:
    """[n] int32: a token for each row of logits [n, vocab]; -1 where it has a NaN, +inf, or nothing allowed.

    Penalties, biases, then what is allowed; then as `kernels.sampling.sample`, with the same uniforms. The logits stay
    as they are; the counts of each row with a slot grow by its token. Raises ValueError on a mismatch.
    """
    n, vocab = logits.shape
    p = parameters
    rows = (p.temperature, p.top_k, p.top_p, p.min_p, p.uniform, p.presence, p.frequency, p.repetition, p.slots)
    fits = (
        all(each.shape == (n,) and each.is_contiguous() for each in rows)
        and p.uniform.dtype == torch.float64
        and len(p.bias_starts) == n + 1
        and p.counts.shape[1] == vocab
        and p.allowed.shape[0] == n
        and p.allowed.shape[1] * 32 >= vocab
    )
    if not fits:
        raise ValueError(f"choose: logits {tuple(logits.shape)} do not fit the parameters")
    if gpu.takes("sampling", logits):
        from kernels.sampling import kernel

        return kernel.choose(logits, parameters)
    return reference.choose(logits, parameters)
