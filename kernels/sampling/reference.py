"""The truth, and the CPU path. The draw inverts the cumulative distribution in the vocabulary's order, in fp64:
near-equal probabilities that swap places between batches then move the outcome no more than their difference."""

import torch
from torch import Tensor

_FEW = 256


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    return logits.max(dim=-1)


def penalize(
    logits: Tensor, counts: Tensor, seen: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor
) -> None:
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits.copy_(torch.where(seen, scaled, logits))
    logits.sub_(frequency * counts).sub_(presence * (counts > 0))


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    probs = torch.softmax(logits / temperature[:, None], dim=-1)
    floor = min_p * probs.amax(dim=-1)
    cut = ((top_k > 0) | (top_p < 1)).nonzero()[:, 0]
    if len(cut):
        floor[cut] = torch.maximum(floor[cut], _smallest_kept(probs[cut], top_k[cut], top_p[cut]))
    probs = probs.masked_fill(probs < floor[:, None], 0)
    total = probs.double().cumsum(dim=-1)
    drawn = torch.searchsorted(total, uniform[:, None] * total[:, -1:], right=True)[:, 0]
    # Rounding may put the target past the last token that has any probability.
    last_possible = (probs > 0).int().cumsum(dim=-1).argmax(dim=-1)
    return torch.minimum(drawn, last_possible)


def _smallest_kept(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The smallest probability among the top_k likeliest and in the smallest set that reaches top_p, a row each.

    Mostly the _FEW likeliest decide; only rows where they do not are sorted whole.
    """
    vocab = probs.shape[-1]
    limit = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab)
    few = min(_FEW, vocab)
    has_limit = limit < vocab
    floor, is_decided = _cut(probs.topk(few).values, probs.sum(dim=-1), limit, has_limit, top_p)
    rest = (~is_decided).nonzero()[:, 0]
    if few < vocab and len(rest):
        whole = probs[rest].sort(dim=-1, descending=True).values
        floor[rest], _ = _cut(whole, probs[rest].sum(dim=-1), limit[rest], has_limit[rest], top_p[rest])
    return floor


def _cut(ordered: Tensor, mass: Tensor, limit: Tensor, has_limit: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest kept value of rows in descending order, and whether the row's columns sufficed to know it.

    mass: the sum of all probabilities, which is what top_p refers to where top_k does not cut first.
    """
    columns = ordered.shape[-1]
    reached = ordered.cumsum(dim=-1)
    within = reached.gather(1, (limit.clamp(max=columns) - 1)[:, None])[:, 0]
    mass = torch.where(has_limit, within, mass)
    is_kept = (reached - ordered < (top_p * mass)[:, None]) & (torch.arange(columns) < limit[:, None])
    num_kept = is_kept.sum(dim=-1).clamp(min=1)
    floor = ordered.gather(1, (num_kept - 1)[:, None])[:, 0]
    # A top_k beyond the columns leaves the mass unknown; without one it is that of all.
    is_mass_known = (limit <= columns) | ~has_limit
    return floor, is_mass_known & ((num_kept < columns) | (limit <= columns))
