"""What of a step's attention is the same in every layer: block ids and masks, worked out once a step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Neighbouring sequences with the same number of new tokens, computed together.

    start: row of the first new token; block_ids [num_seqs * num_blocks], shorter tables padded with any valid block;
    mask [num_seqs, 1, query_len, num_blocks * block_size] additive, 0 or -inf, in the model's dtype; None for a whole
    prompt, whose i-th token sees tokens 0 to i.
    """

    start: int
    num_seqs: int
    query_len: int
    block_ids: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class AttentionPlan:
    num_tokens: int
    groups: tuple[Group, ...]


def plan_attention(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    *,
    block_size: int,
    dtype: torch.dtype,
) -> AttentionPlan:
    """Plan for sequences whose new tokens stand in this order in the batch.

    context_lens count the new tokens too; block_tables[i] covers at least context_lens[i]. Sequences with one new
    token share a group while padding stays under a half: callers that sort them by context length get few groups.
    """
    groups = []
    start = first = 0
    while first < len(query_lens):
        last = _group_end(query_lens, context_lens, first, block_size=block_size)
        groups.append(
            _make_group(start, query_lens[first], context_lens[first:last], block_tables[first:last], block_size, dtype)
        )
        start += query_lens[first] * (last - first)
        first = last
    return AttentionPlan(start, tuple(groups))


def _group_end(query_lens: Sequence[int], context_lens: Sequence[int], first: int, *, block_size: int) -> int:
    """The end of the run of decodes from `first` that pads at most as much as it holds; prefills stand alone."""
    end = first + 1
    if query_lens[first] != 1:
        return end
    longest = total = _num_blocks(context_lens[first], block_size)
    while end < len(query_lens) and query_lens[end] == 1:
        blocks = _num_blocks(context_lens[end], block_size)
        longest, total = max(longest, blocks), total + blocks
        # A few blocks too many cost less than another group's calls.
        if longest * (end + 1 - first) > 2 * total + 64:
            break
        end += 1
    return end


def _make_group(
    start: int,
    query_len: int,
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
    dtype: torch.dtype,
) -> Group:
    num_blocks = max(_num_blocks(length, block_size) for length in context_lens)
    block_ids: list[int] = []
    for table in block_tables:
        row = list(table[:num_blocks])
        block_ids += row + row[:1] * (num_blocks - len(row))
    if query_len > 1 and list(context_lens) == [query_len]:
        return Group(start, 1, query_len, torch.tensor(block_ids), None)
    # Token i of the new ones sees positions 0 .. context_len - query_len + i.
    last_visible = torch.tensor(context_lens)[:, None] - query_len + torch.arange(query_len)
    hidden = torch.arange(num_blocks * block_size) > last_visible[:, :, None]
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return Group(start, len(context_lens), query_len, torch.tensor(block_ids), mask[:, None])


def _num_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
