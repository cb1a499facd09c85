"""What of a step's attention is the same in many layers: block ids and masks, worked out once a step."""

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
    window: int | None = None,
) -> AttentionPlan:
    """Plan for sequences whose new tokens stand in this order in the batch.

    context_lens count the new tokens too; block_tables[i] covers at least context_lens[i]. A token sees itself and
    what is before it, of that with a `window` the last window - 1; blocks that no new token sees are not read.
    Sequences with one new token share a group while padding stays under a half: callers that sort them by context
    length get few groups.
    """
    tables, starts = _visible_blocks(query_lens, context_lens, block_tables, block_size=block_size, window=window)
    groups = []
    row = first = 0
    while first < len(query_lens):
        last = _group_end(query_lens, tables, first)
        query_len = query_lens[first]
        members = slice(first, last)
        block_ids = torch.tensor(_padded(tables[members]))
        if query_len > 1 and context_lens[first] == query_len and (window is None or query_len <= window):
            mask = None
        else:
            # Token i of the new ones stands at context_len - query_len + i.
            at = torch.tensor(context_lens[members])[:, None] - query_len + torch.arange(query_len)
            num_keys = len(block_ids) // (last - first) * block_size
            mask = _mask(at, torch.tensor(starts[members]), num_keys, window, dtype)
        groups.append(Group(row, last - first, query_len, block_ids, mask))
        row += query_len * (last - first)
        first = last
    return AttentionPlan(row, tuple(groups))


def _visible_blocks(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    *,
    block_size: int,
    window: int | None,
) -> tuple[list[list[int]], list[int]]:
    """Each sequence's blocks that its new tokens see, and the position of the first token in the first of them."""
    tables, starts = [], []
    for query_len, context_len, table in zip(query_lens, context_lens, block_tables, strict=True):
        first = 0 if window is None else max(context_len - query_len + 1 - window, 0) // block_size
        tables.append(list(table[first : -(-context_len // block_size)]))
        starts.append(first * block_size)
    return tables, starts


def _group_end(query_lens: Sequence[int], tables: list[list[int]], first: int) -> int:
    """The end of the run of decodes from `first` that pads at most as much as it holds; prefills stand alone."""
    end = first + 1
    if query_lens[first] != 1:
        return end
    longest = total = len(tables[first])
    while end < len(query_lens) and query_lens[end] == 1:
        num_blocks = len(tables[end])
        longest, total = max(longest, num_blocks), total + num_blocks
        # A few blocks too many cost less than another group's calls.
        if longest * (end + 1 - first) > 2 * total + 64:
            break
        end += 1
    return end


def _padded(tables: list[list[int]]) -> list[int]:
    """All tables one after the other, each as long as the longest."""
    longest = max(map(len, tables))
    return [block_id for table in tables for block_id in table + table[:1] * (longest - len(table))]


def _mask(at: Tensor, starts: Tensor, num_keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """[num_seqs, 1, query_len, num_keys]. at [num_seqs, query_len]: positions; starts [num_seqs]: the keys' first."""
    keys = starts[:, None, None] + torch.arange(num_keys)
    hidden = keys > at[:, :, None]
    if window is not None:
        hidden |= keys <= at[:, :, None] - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None]
