"""The part of a step's attention that is the same in many layers: block ids and masks, computed once per step."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

NO_WINDOW = 1 << 40


@dataclass(frozen=True)
class Group:
    """Neighbouring sequences with the same number of new tokens, computed together.

    start: row of the first new token; block_ids [num_seqs * num_blocks], shorter tables padded with any valid block;
    mask [num_seqs, 1, query_len, num_blocks * block_size] additive, 0 or -inf, in the model's dtype; None for a whole
    prompt, whose i-th token sees tokens 0 to i; hidden: which of the blocks' num_seqs * num_blocks * block_size slots
    no new token sees. They may hold anything, even NaN, which no mask makes harmless.
    """

    start: int
    num_seqs: int
    query_len: int
    block_ids: Tensor
    mask: Tensor | None
    hidden: Tensor


@dataclass(frozen=True)
class Tables:
    """Read by the native kernel, int32: starts [num_seqs + 1], each sequence's first row, and the end; context_lens
    [num_seqs]; block_ids, one sequence's after the other's, and first_blocks [num_seqs], where each sequence's begin.
    No table is padded: padding to a table of thousands of blocks would take longer than the step. window: larger than
    any length if there is no window."""

    starts: Tensor
    context_lens: Tensor
    first_blocks: Tensor
    block_ids: Tensor
    window: int


@dataclass(frozen=True)
class AttentionPlan:
    """`plan_attention`'s arguments, and the tables of each path, made at their first use."""

    query_lens: Sequence[int]
    context_lens: Sequence[int]
    block_tables: Sequence[list[int]]
    block_size: int
    dtype: torch.dtype
    window: int | None
    is_deterministic: bool = False

    @cached_property
    def num_tokens(self) -> int:
        return sum(self.query_lens)

    @cached_property
    def tables(self) -> Tables:
        block_ids = array("i")
        first_blocks = []
        for table in self.block_tables:
            first_blocks.append(len(block_ids))
            # Three times as fast as a copy by torch.
            block_ids.fromlist(table)
        return Tables(
            starts=torch.tensor([0, *accumulate(self.query_lens)], dtype=torch.int32),
            context_lens=torch.tensor(self.context_lens, dtype=torch.int32),
            first_blocks=torch.tensor(first_blocks, dtype=torch.int32),
            block_ids=torch.frombuffer(block_ids, dtype=torch.int32),
            window=NO_WINDOW if self.window is None else self.window,
        )

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        tables, starts = _visible_blocks(self)
        groups = []
        row = first = 0
        while first < len(tables):
            last = _group_end(self.query_lens, tables, first)
            group = _make_group(self, tables[first:last], starts[first:last], first, row)
            groups.append(group)
            row += group.query_len * group.num_seqs
            first = last
        return tuple(groups)


def plan_attention(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[list[int]],
    *,
    block_size: int,
    dtype: torch.dtype,
    window: int | None = None,
    is_deterministic: bool = False,
) -> AttentionPlan:
    """Plan for sequences whose new tokens are in this order in the batch.

    context_lens count the new tokens too; block_tables[i] covers at least context_lens[i]. A token sees itself and the
    tokens before it, with a `window` the last window - 1 of them; blocks that no new token sees are not read.
    In the torch path sequences with one new token share a group while padding stays under a half: callers that sort
    them by context length get few groups. is_deterministic: a token's result has the same bits in any batch.
    """
    return AttentionPlan(query_lens, context_lens, block_tables, block_size, dtype, window, is_deterministic)


def _make_group(plan: AttentionPlan, tables: list[list[int]], starts: list[int], first: int, row: int) -> Group:
    """The group of the sequences from `first` on, with these visible blocks; `row` is the row of their first token."""
    query_len, block_ids = plan.query_lens[first], torch.tensor(_padded(tables))
    is_whole_prompt = query_len > 1 and plan.context_lens[first] == query_len
    num_keys = len(block_ids) // len(tables) * plan.block_size
    if is_whole_prompt and (plan.window is None or query_len <= plan.window):
        return Group(row, len(tables), query_len, block_ids, None, torch.arange(query_len, num_keys))
    # New token i is at position context_len - query_len + i.
    context_lens = torch.tensor(plan.context_lens[first : first + len(tables)])
    at = context_lens[:, None] - query_len + torch.arange(query_len)
    mask = _mask(at, torch.tensor(starts), num_keys, plan.window, plan.dtype)
    hidden = mask.isneginf().all(dim=2).flatten().nonzero()[:, 0]
    return Group(row, len(tables), query_len, block_ids, mask, hidden)


def _visible_blocks(plan: AttentionPlan) -> tuple[list[list[int]], list[int]]:
    """Each sequence's blocks that its new tokens see, and the position of the first token in the first of them."""
    size, tables, starts = plan.block_size, [], []
    for query_len, context_len, table in zip(plan.query_lens, plan.context_lens, plan.block_tables, strict=True):
        first = 0 if plan.window is None else max(context_len - query_len + 1 - plan.window, 0) // size
        tables.append(list(table[first : -(-context_len // size)]))
        starts.append(first * size)
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


def _padded(tables: Sequence[Sequence[int]]) -> list[int]:
    """All tables one after the other, each as long as the longest."""
    longest = max(map(len, tables))
    return [block_id for table in tables for block_id in (*table, *list(table[:1]) * (longest - len(table)))]


def _mask(at: Tensor, starts: Tensor, num_keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """[num_seqs, 1, query_len, num_keys]. at [num_seqs, query_len]: positions; starts [num_seqs]: the keys' first."""
    keys = starts[:, None, None] + torch.arange(num_keys)
    hidden = keys > at[:, :, None]
    if window is not None:
        hidden |= keys <= at[:, :, None] - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None]
