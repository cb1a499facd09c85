"""The truth, and the CPU path. The draw inverts the cumulative distribution in the vocabulary's order, in fp64:
near-equal probabilities that swap places between batches then move the outcome no more than their difference."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernels.sampling.step import StepParameters, Wanted

_FEW = 65
"""torch finds more than this only in a slower way. One more than the 64 that are sometimes asked for, to see whether
another token is as likely."""
_BLOCK = 64
_IN_PROMPT = 1 << 30


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    return logits.max(dim=-1)


def penalize(
    logits: Tensor, rows: Tensor, ids: Tensor, counts: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor
) -> None:
    used = logits[rows, ids]
    used = torch.where(used > 0, used / repetition, used * repetition)
    logits[rows, ids] = used - frequency * counts - presence * (counts > 0)


def forbid(logits: Tensor, rows: list[int], allowed: Tensor) -> None:
    vocab = logits.shape[-1]
    bits = np.unpackbits(~allowed.numpy().view(np.uint8), axis=1, count=vocab, bitorder="little")
    is_forbidden = torch.from_numpy(bits.view(np.bool_))
    if len(rows) == len(logits):
        logits.masked_fill_(is_forbidden, float("-inf"))
        return
    for row, is_out in zip(rows, is_forbidden, strict=True):
        logits[row].masked_fill_(is_out, float("-inf"))


def logprobs(logits: Tensor, ids: Tensor, *, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    # Row by row, unlike logsumexp, which divides a single long row among threads.
    every = logits.log_softmax(dim=-1)
    top_ids = logits.topk(num_top, dim=-1).indices
    return every.gather(1, ids[:, None])[:, 0], every.gather(1, top_ids), top_ids


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    probs = torch.softmax(logits / temperature[:, None], dim=-1)
    is_cut = (top_k > 0) | (top_p < 1) | (min_p > 0)
    if not is_cut.any():
        return _draw(probs, uniform)
    if is_cut.all():
        return _draw_cut(probs, top_k, top_p, min_p, uniform)
    drawn = torch.empty(len(probs), dtype=torch.int64)
    whole, cut = (~is_cut).nonzero()[:, 0], is_cut.nonzero()[:, 0]
    drawn[whole] = _draw(probs[whole], uniform[whole])
    drawn[cut] = _draw_cut(probs[cut], top_k[cut], top_p[cut], min_p[cut], uniform[cut])
    return drawn


def _draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Finds first the block of neighbours, then the token in it, so that the exact sums are short."""
    n, vocab = probs.shape
    if vocab % _BLOCK:
        probs = torch.nn.functional.pad(probs, (0, -vocab % _BLOCK))
    blocks = probs.view(n, -(-vocab // _BLOCK), _BLOCK)
    reached = blocks.sum(dim=-1).double().cumsum(dim=-1)
    target = uniform * reached[:, -1]
    # Only a NaN gets beyond the last block.
    block = torch.searchsorted(reached, target[:, None], right=True).clamp(max=blocks.shape[1] - 1)
    before = torch.nn.functional.pad(reached, (1, 0)).gather(1, block)
    inside = blocks[torch.arange(n), block[:, 0]]
    return block[:, 0] * _BLOCK + _invert(inside, target - before[:, 0])


def _draw_cut(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """Usually the _FEW likeliest tokens tell which are kept; other rows are examined as a whole, one by one."""
    few = min(_FEW, probs.shape[-1])
    ordered, ids = probs.topk(few)
    floor, is_decided = _cut(ordered, probs.shape[-1], probs.sum(dim=-1), top_k, top_p)
    floor = torch.maximum(floor, min_p * ordered[:, 0])
    is_decided &= (ordered[:, -1] < floor) | (few == probs.shape[-1])
    ids, order = ids.sort(dim=-1)
    kept = (ordered * (ordered >= floor[:, None])).gather(1, order)
    drawn = ids.gather(1, _invert(kept, uniform * kept.double().sum(dim=-1))[:, None])[:, 0]
    is_number = ~ordered[:, 0].isnan()
    for i in (~is_decided & is_number).nonzero()[:, 0].tolist():
        row = probs[i]
        floor_of_row = torch.maximum(_smallest_kept(row, int(top_k[i]), float(top_p[i])), min_p[i] * ordered[i, 0])
        drawn[i] = _draw((row * (row >= floor_of_row))[None], uniform[i : i + 1])[0]
    return drawn


def _cut(ordered: Tensor, vocab: int, mass: Tensor, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """For rows in descending order: the smallest value within top_k and then top_p, and whether the columns suffice.

    mass: the sum of all probabilities, to which top_p refers unless top_k cuts first.
    """
    columns = ordered.shape[-1]
    limit = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab)
    has_limit = limit < vocab
    reached = ordered.cumsum(dim=-1)
    within = reached.gather(1, (limit.clamp(max=columns) - 1)[:, None])[:, 0]
    mass = torch.where(has_limit, within, mass)
    # After rounding, the sum before a rare token may be all of the mass.
    is_within = (reached - ordered < (top_p * mass)[:, None]) | (top_p >= 1)[:, None]
    is_kept = is_within & (torch.arange(columns) < limit[:, None])
    num_kept = is_kept.sum(dim=-1).clamp(min=1)
    return ordered.gather(1, (num_kept - 1)[:, None])[:, 0], (limit <= columns) | ~has_limit


def _smallest_kept(probs: Tensor, top_k: int, top_p: float) -> Tensor:
    """As `_cut`, for one row of any length; probs [vocab]."""
    vocab = len(probs)
    if 0 < top_k < vocab:
        ordered = probs.topk(top_k).values
    elif top_p >= 1:
        return probs.new_zeros(())
    else:
        # Rarer tokens than this add up to less than top_p leaves out (half, for rounding): no need to sort them.
        ordered = probs[probs >= (1 - top_p) / (2 * vocab)].sort(descending=True).values
    return _cut(ordered[None], vocab, probs.sum()[None], torch.tensor([top_k]), torch.tensor([top_p]))[0][0]


def _invert(weights: Tensor, target: Tensor) -> Tensor:
    """The first column of each row at which the cumulative sum exceeds target; the last positive if rounding hides it.

    weights [n, columns]; target [n] fp64.
    """
    reached = weights.double().cumsum(dim=-1)
    found = torch.searchsorted(reached, target[:, None], right=True)[:, 0]
    last_possible = ((weights > 0) * torch.arange(weights.shape[-1])).amax(dim=-1)
    return torch.minimum(found, last_possible)


def choose(logits: Tensor, p: "StepParameters") -> Tensor:
    """As in `kernels.sampling.step`; works row by row where rows differ, so that it waits for a GPU."""
    vocab = logits.shape[1]
    adjusted = logits.float().cpu()
    counts, slots = p.counts, p.slots.long()
    rows = (slots >= 0).nonzero()[:, 0]
    used = counts[slots[rows]].cpu()
    places, ids = used.nonzero(as_tuple=True)
    rows_of = rows.cpu()[places]
    penalties = (each.cpu()[rows_of] for each in (p.presence, p.frequency, p.repetition))
    penalize(adjusted, rows_of, ids, used[places, ids] & (_IN_PROMPT - 1), *penalties)
    for row, (start, end) in enumerate(zip(p.bias_starts.tolist(), p.bias_ends.tolist(), strict=True)):
        if end > start:
            adjusted[row, p.bias_ids[start:end].cpu().long()] += p.bias_values[start:end].cpu()
    at = torch.arange(vocab)
    for row, mask in enumerate(p.masks.tolist()):
        if mask >= 0:
            adjusted[row].masked_fill_((p.allowed[mask].cpu()[at // 32] >> (at % 32)) & 1 == 0, float("-inf"))
    best, chosen = greedy(adjusted)
    parameters = [each.cpu() for each in (p.temperature, p.top_k.long(), p.top_p, p.min_p, p.uniform)]
    random = ((parameters[0] >= 1e-5) & best.isfinite()).nonzero()[:, 0]
    if len(random):
        chosen[random] = sample(adjusted[random], *(each[random] for each in parameters))
    chosen[~best.isfinite()] = -1
    chosen = chosen.to(logits.device)
    counted = rows[chosen[rows] >= 0]
    counts[slots[counted], chosen[counted]] += 1
    return chosen.int()


def score(logits: Tensor, ids: Tensor, wanted: "Wanted", *, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """As in `kernels.sampling.step`; works row by row where rows ask for ids, so that it waits for a GPU."""
    logits = logits.float()
    own, top, top_ids = logprobs(logits, ids.long().clamp(min=0), num_top=most)
    for row, (place, num) in enumerate(zip(wanted.asked.tolist(), wanted.nums.tolist(), strict=True)):
        if place >= 0:
            every = logits[row].log_softmax(dim=-1)
            wanted.asked_logprobs[place, :num] = every[wanted.asked_ids[place, :num].long()]
    return own, top, top_ids.int()
