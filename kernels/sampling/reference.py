"""The truth, and the CPU path. The draw inverts the cumulative distribution in the vocabulary's order, in fp64:
near-equal probabilities that swap places between batches then move the outcome no more than their difference."""

import torch
from torch import Tensor


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
    if bool((top_k > 0).any()) or bool((top_p < 1).any()):
        probs = _truncate(probs, top_k, top_p)
    if bool((min_p > 0).any()):
        floor = min_p * probs.amax(dim=-1)
        probs = probs.masked_fill(probs < floor[:, None], 0)
    total = probs.double().cumsum(dim=-1)
    drawn = torch.searchsorted(total, uniform[:, None] * total[:, -1:], right=True)[:, 0]
    # Rounding may put the target past the last token that has any probability.
    last_possible = (probs > 0).int().cumsum(dim=-1).argmax(dim=-1)
    return torch.minimum(drawn, last_possible)


def _truncate(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zero what is not among the top_k likeliest, or not in the smallest set that reaches top_p."""
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1])
    limit = torch.where(top_k > 0, top_k, probs.shape[-1])
    ordered = ordered.masked_fill(rank >= limit[:, None], 0)
    # top_p counts within what top_k left, as vLLM and transformers do.
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= (top_p * ordered.sum(dim=-1))[:, None], 0)
    return torch.zeros_like(probs).scatter_(-1, ids, ordered)
