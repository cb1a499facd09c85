"""Chooses the next token of each row of a step, on the GPU: all parameters are tensors, so a graph can replay it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import gpu
from kernels.sampling import reference

IN_PROMPT = 1 << 30
"""A flag in `StepParameters.counts`: the prompt has the token. The other bits count how often the answer has it."""


@dataclass(frozen=True, slots=True)
class StepParameters:
    """All on the GPU and dense; n rows.

    temperature (below 1e-5: the likeliest token), top_p, min_p, presence, frequency, repetition [n] fp32; top_k [n]
    int32, 0 for all; uniform [n] fp64.
    slots [n] int32, distinct: the rows of `counts` [any, vocab] int32, which are read where a row has a penalty and
    grow by the chosen token; -1 for a row without penalties. Row i's biases: bias_starts[i] .. bias_ends[i] - 1 of
    bias_ids (int32, distinct in a row) and bias_values (fp32, -inf forbids). masks [n] int32: the row of `allowed`
    [any, any] int32, of which bit t % 32 of word t // 32 tells whether token t may be chosen; -1 if all may.
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
    bias_ends: Tensor
    bias_ids: Tensor
    bias_values: Tensor
    masks: Tensor
    allowed: Tensor


@dataclass(frozen=True, slots=True)
class Wanted:
    """The log-probabilities that n rows want; all on the GPU and dense.

    nums [n] int32: how many of the likeliest, up to `most`; -1 for a row that wants nothing. asked [n] int32, distinct:
    the row of asked_ids [any, room] int32 whose first `nums` ids are wanted instead of the likeliest, and of
    asked_logprobs [any, room] fp32, where theirs are written; -1 for a row that asks for none.
    """

    nums: Tensor
    asked: Tensor
    asked_ids: Tensor
    asked_logprobs: Tensor


def choose(logits: Tensor, parameters: StepParameters) -> Tensor:
    """[n] int32: a token for each row of logits [n, vocab]; -1 where it has a NaN, +inf, or nothing allowed.

    Applies penalties, biases, then masks; then draws as `kernels.sampling.sample` with the same uniforms. Leaves the
    logits unchanged; adds the token to the counts of each row with a slot. Raises ValueError on a mismatch.
    """
    n, vocab = logits.shape
    p = parameters
    rows = [p.temperature, p.top_k, p.top_p, p.min_p, p.uniform, p.presence, p.frequency, p.repetition, p.slots]
    rows += [p.bias_starts, p.bias_ends, p.masks]
    fits = (
        all(each.shape == (n,) and each.is_contiguous() for each in rows)
        and p.uniform.dtype == torch.float64
        and p.counts.shape[1] == vocab
        and p.allowed.shape[1] * 32 >= vocab
    )
    if not fits:
        raise ValueError(f"choose: logits {tuple(logits.shape)} do not fit the parameters")
    if gpu.takes("sampling", logits):
        from kernels.sampling import kernel

        return kernel.choose(logits, parameters)
    return reference.choose(logits, parameters)


def score(logits: Tensor, ids: Tensor, wanted: Wanted, *, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row of logits [n, vocab] that wants it: log softmax at ids, [n] fp32; the largest, descending,
    [n, most] fp32, and their ids, [n, most] int32, the first among equals. Ids asked for are scored in asked_logprobs.

    ids [n] int32, -1 where nothing was chosen. Results that no row wants are undefined. Raises ValueError on mismatch.
    """
    has_rows = ids.shape == wanted.nums.shape == wanted.asked.shape == logits.shape[:1]
    has_room = wanted.asked_ids.shape == wanted.asked_logprobs.shape and most <= logits.shape[1]
    if not (has_rows and has_room) or ids.dtype != torch.int32:
        raise ValueError(f"score: logits {tuple(logits.shape)} do not fit ids {tuple(ids.shape)} {ids.dtype}")
    if gpu.takes("sampling", logits):
        from kernels.sampling import logprobs_kernel

        return logprobs_kernel.score(logits, ids, wanted, most=most)
    return reference.score(logits, ids, wanted, most=most)
