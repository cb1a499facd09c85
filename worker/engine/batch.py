"""Turns a step's chunks into the tensors of one forward pass."""

from collections.abc import Iterable
from collections.abc import Sequence as Indexed

import torch
from torch import Tensor

from kernels.lora import MAX_RUN, LoraPlan, plan_lora
from kernels.paged_attention import plan_attention
from worker.engine.blocks import BLOCK_SIZE
from worker.engine.sequence import Chunk
from worker.model.layers import StepInputs


def order_chunks(chunks: list[Chunk]) -> list[Chunk]:
    """Decodes first, by context length, so that attention can process neighbours together with little padding."""
    return sorted(chunks, key=lambda chunk: (chunk.num_tokens, chunk.sequence.num_computed))


def make_inputs(
    chunks: list[Chunk],
    cos: Tensor,
    sin: Tensor,
    *,
    slot_pages: Indexed[Indexed[int]],
    windows: Iterable[int | None],
    is_deterministic: bool,
) -> StepInputs:
    """chunks: in the order of `order_chunks`. cos, sin: the whole rope tables. slot_pages: pages of the adapter in each
    slot. windows: the layers' attention windows."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    output_rows: list[int] = []
    yielding: list[Chunk] = []
    has_pooling = False
    for chunk in chunks:
        sequence, start = chunk.sequence, chunk.sequence.num_computed
        end = start + chunk.num_tokens
        token_ids += sequence.token_ids[start:end]
        positions += range(start, end)
        slots += [sequence.block_ids[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(start, end)]
        if sequence.request.pooling is not None:
            has_pooling = True
        elif chunk.is_last:
            output_rows.append(len(token_ids) - 1)
            yielding.append(chunk)
    query_lens = [chunk.num_tokens for chunk in chunks]
    context_lens = [chunk.sequence.num_computed + chunk.num_tokens for chunk in chunks]
    tables = [chunk.sequence.block_ids for chunk in chunks]
    attention = {
        window: plan_attention(
            query_lens,
            context_lens,
            tables,
            block_size=BLOCK_SIZE,
            dtype=cos.dtype,
            window=window,
            is_deterministic=is_deterministic,
        )
        for window in windows
    }
    at = torch.tensor(positions)
    return StepInputs(
        token_ids=torch.tensor(token_ids),
        slots=torch.tensor(slots),
        cos=cos.index_select(0, at),
        sin=sin.index_select(0, at),
        attention=attention,
        lora=_plan_adapters(chunks, query_lens, slot_pages),
        output_rows=torch.tensor(output_rows, dtype=torch.int64),
        rows_lora=_plan_adapters(yielding, [1] * len(yielding), slot_pages),
        has_pooling=has_pooling,
    )


def _plan_adapters(chunks: list[Chunk], lens: list[int], slot_pages: Indexed[Indexed[int]]) -> LoraPlan | None:
    return plan_lora([chunk.sequence.adapter_slot for chunk in chunks], lens, slot_pages, max_run=MAX_RUN)
