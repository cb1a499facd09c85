"""From a step's chunks to the tensors of one forward pass."""

from collections.abc import Iterable

import torch
from torch import Tensor

from kernels.lora import plan_lora
from kernels.paged_attention import plan_attention
from worker.engine.blocks import BLOCK_SIZE
from worker.engine.sequence import Chunk
from worker.model.layers import StepInputs


def order_chunks(chunks: list[Chunk]) -> list[Chunk]:
    """Decodes first, by context length, so that attention can take neighbours together with little padding."""
    return sorted(chunks, key=lambda chunk: (chunk.num_tokens, chunk.sequence.num_computed))


def make_inputs(
    chunks: list[Chunk],
    cos: Tensor,
    sin: Tensor,
    *,
    num_adapter_slots: int,
    windows: Iterable[int | None],
    is_deterministic: bool,
) -> StepInputs:
    """chunks in the order of `order_chunks`; cos and sin are the whole rope tables; windows: those of the layers."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    adapters: list[int] = []
    output_rows: list[int] = []
    has_pooling = False
    for chunk in chunks:
        sequence, start = chunk.sequence, chunk.sequence.num_computed
        end = start + chunk.num_tokens
        token_ids += sequence.token_ids[start:end]
        positions += range(start, end)
        slots += [sequence.block_ids[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(start, end)]
        adapters += [sequence.adapter_slot] * chunk.num_tokens
        if sequence.request.pooling is not None:
            has_pooling = True
        elif chunk.is_last:
            output_rows.append(len(token_ids) - 1)
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
        segments=plan_lora(adapters, num_slots=num_adapter_slots),
        output_rows=torch.tensor(output_rows, dtype=torch.int64),
        has_pooling=has_pooling,
    )
