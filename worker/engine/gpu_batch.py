"""Turns a step's chunks into its tables on the GPU, all in one copy."""

from collections.abc import Sequence as Indexed
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.lora import LoraPlan, LoraTables, plan_lora
from kernels.lora.tables import GPU_RUN
from kernels.paged_decode import DecodeTables, max_parts, num_programs, plan_decode
from kernels.paged_prefill import PrefillTables, plan_prefill, tile_rows
from worker.engine.blocks import BLOCK_SIZE, blocks_needed
from worker.engine.gpu_sampler import WORDS_A_ROW, GpuSampler, SampleTables
from worker.engine.sequence import Chunk
from worker.engine.step_buffer import StepBuffer
from worker.model.config import ModelConfig
from worker.model.gpu_forward import GpuStep, Window

_MAX_PLACES = 16
"""The most pages, of 16 ranks each, that an adapter has."""
_SAMPLE = "sample."
_BUCKET_STEP = 16
"""The most rows by which a graph's batch is padded."""


@dataclass(frozen=True)
class Shapes:
    """Values that do not change from step to step."""

    config: ModelConfig
    itemsize: int
    max_model_len: int
    has_adapters: bool
    dummy_block: int
    cos: Tensor
    sin: Tensor

    @property
    def windows(self) -> frozenset[Window]:
        return frozenset(self.config.windows)

    @property
    def group(self) -> int:
        return self.config.num_heads // self.config.num_kv_heads


def buffer_words(shapes: Shapes, *, max_seqs: int, max_tokens: int) -> int:
    """A buffer size that is enough for any step of up to max_seqs sequences and max_tokens tokens."""
    max_seqs += _BUCKET_STEP
    max_tokens += _BUCKET_STEP
    tables = max_seqs * (blocks_needed(shapes.max_model_len) + 1)
    lora = (3 + _MAX_PLACES) * max_tokens + 9 * max_seqs * _MAX_PLACES + 4 * max_tokens * _MAX_PLACES
    decode = len(shapes.windows) * (6 * max_seqs * max_parts(shapes.max_model_len) + 4096)
    rows = max_seqs * (WORDS_A_ROW + 4)
    return 2 * tables + 16 * max_tokens + lora + decode + rows + 4096


class _Fields:
    def __init__(self) -> None:
        self.values: dict[str, tuple[NDArray[Any], int]] = {}

    def add(self, name: str, values: Any, *, room: int | None = None) -> None:
        array = np.ascontiguousarray(values, dtype=np.int32).reshape(-1)
        self.values[name] = (array, len(array) if room is None else room)

    def add_words(self, name: str, values: NDArray[Any]) -> None:
        """values: of 4 or 8 bytes each."""
        self.values[name] = (values, values.nbytes // 4)


@dataclass(frozen=True, slots=True)
class StepTables:
    """All of a step's tables. feeds [tokens] int32: the index in `GpuSampler.last` of a token that the host did not
    know; -1 for tokens in forward.token_ids."""

    forward: GpuStep
    feeds: Tensor
    sample: SampleTables


def put_step(
    buffer: StepBuffer,
    chunks: Indexed[Chunk],
    shapes: Shapes,
    sampler: GpuSampler,
    *,
    slot_pages: Indexed[Indexed[int]],
    bucket: int | None = None,
) -> StepTables:
    """chunks: those of one token first. bucket: chunks of one token only, padded to this many rows, and tables whose
    places and sizes depend on the bucket alone, as a graph needs them. Padding rows own the dummy block."""
    decodes = [chunk for chunk in chunks if chunk.num_tokens == 1]
    prefills = list(chunks[len(decodes) :])
    assert bucket is None or (not prefills and len(decodes) <= bucket)
    num_decodes = len(decodes) if bucket is None else bucket
    padding = num_decodes - len(decodes)
    fields = _Fields()
    _add_tokens(fields, chunks, sampler, padding, shapes.dummy_block)
    yielding = [chunk.sequence for chunk in chunks if chunk.yields]
    for name, values in sampler.fields(yielding, len(yielding) if bucket is None else bucket).items():
        fields.add_words(_SAMPLE + name, values)
    decode_lens = [chunk.sequence.num_computed + 1 for chunk in decodes] + [0] * padding
    _add_decodes(fields, decodes, decode_lens, shapes, is_static=bucket is not None)
    contexts = [chunk.sequence.num_computed + chunk.num_tokens for chunk in prefills]
    queries = [chunk.num_tokens for chunk in prefills]
    if prefills:
        rows = tile_rows(shapes.itemsize)
        fields.add("prefill_items", plan_prefill(queries, contexts, group=shapes.group, rows=rows))
        fields.add("prefill_blocks", _block_rows(prefills, max(map(blocks_needed, contexts))))
    plan = _add_adapters(fields, chunks, slot_pages, bucket) if shapes.has_adapters else None
    on_gpu = buffer.put(fields.values)
    forward = GpuStep(
        token_ids=on_gpu["token_ids"],
        positions=on_gpu["positions"],
        slots=on_gpu["slots"],
        num_decodes=num_decodes,
        decode=_decode_tables(on_gpu, num_decodes, shapes) if num_decodes else {},
        prefill=_prefill_tables(on_gpu, queries, contexts, shapes) if prefills else {},
        lora=_lora_tables(on_gpu, plan, len(on_gpu["token_ids"]), bucket),
        cos=shapes.cos,
        sin=shapes.sin,
        output_rows=on_gpu["output_rows"],
    )
    own = {name.removeprefix(_SAMPLE): words for name, words in on_gpu.items() if name.startswith(_SAMPLE)}
    return StepTables(forward, on_gpu["feeds"], sampler.tables(own))


def _add_tokens(fields: _Fields, chunks: Indexed[Chunk], sampler: GpuSampler, padding: int, dummy_block: int) -> None:
    token_ids: list[int] = []
    feeds: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    for chunk in chunks:
        sequence, start = chunk.sequence, chunk.sequence.num_computed
        known = sequence.token_ids[start : start + chunk.num_tokens]
        token_ids += known or [0]
        feeds += [-1] * len(known) if known else [sampler.slot(sequence)]
        places = range(start, start + chunk.num_tokens)
        positions += places
        slots += [sequence.block_ids[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in places]
        if chunk.yields:
            rows.append(len(token_ids) - 1)
    # Padding rows have their own slots behind the cache, which nobody reads.
    slots += [dummy_block * BLOCK_SIZE + i for i in range(padding)]
    fields.add("token_ids", token_ids + [0] * padding)
    fields.add("feeds", feeds + [-1] * padding)
    fields.add("positions", positions + [0] * padding)
    fields.add("slots", slots)
    fields.add("output_rows", rows if not padding else [*range(len(token_ids) + padding)])


def _add_decodes(fields: _Fields, decodes: list[Chunk], lens: list[int], shapes: Shapes, *, is_static: bool) -> None:
    fields.add("decode_lens", lens)
    for i, window in enumerate(sorted(shapes.windows, key=str)):
        programs = num_programs(shapes.config.num_kv_heads)
        plan = plan_decode(lens, num_programs=programs, window=window)
        room = 4 * _most_parts(len(lens), shapes) if is_static else None
        fields.add(f"items_{i}", plan.items, room=room)
        fields.add(f"programs_{i}", plan.programs)
        fields.add(f"parts_{i}", plan.parts)
    width = blocks_needed(shapes.max_model_len) if is_static else max(map(blocks_needed, lens), default=0)
    fields.add("decode_blocks", _block_rows(decodes, width), room=len(lens) * width)


def _most_parts(num_seqs: int, shapes: Shapes) -> int:
    return num_seqs * max_parts(shapes.max_model_len)


def _block_rows(chunks: list[Chunk], width: int) -> NDArray[np.int32]:
    rows = np.zeros((len(chunks), width), dtype=np.int32)
    for row, chunk in zip(rows, chunks, strict=True):
        row[: len(chunk.sequence.block_ids[:width])] = chunk.sequence.block_ids[:width]
    return rows


def _add_adapters(
    fields: _Fields, chunks: Indexed[Chunk], slot_pages: Indexed[Indexed[int]], bucket: int | None
) -> LoraPlan | None:
    slots = [chunk.sequence.adapter_slot for chunk in chunks]
    plan = plan_lora(slots, [chunk.num_tokens for chunk in chunks], slot_pages, max_run=GPU_RUN)
    if plan is None and bucket is None:
        return None
    rooms = {"rows": 1, "pages": _MAX_PLACES, "shrink": 4 * _MAX_PLACES, "expand": 4}
    for name, per_token in rooms.items():
        values = getattr(plan, name).numpy() if plan else ()
        fields.add(f"lora_{name}", values, room=None if bucket is None else bucket * per_token)
    fields.add("lora_counts", [len(plan.shrink), len(plan.expand)] if plan else [0, 0])
    return plan


def _decode_tables(on_gpu: dict[str, Tensor], num_seqs: int, shapes: Shapes) -> dict[Window, DecodeTables]:
    return {
        window: DecodeTables(
            context_lens=on_gpu["decode_lens"],
            blocks=on_gpu["decode_blocks"].view(num_seqs, -1),
            items=on_gpu[f"items_{i}"],
            programs=on_gpu[f"programs_{i}"],
            parts=on_gpu[f"parts_{i}"],
            most_parts=len(on_gpu[f"items_{i}"]) // 4,
            window=window,
        )
        for i, window in enumerate(sorted(shapes.windows, key=str))
    }


def _prefill_tables(
    on_gpu: dict[str, Tensor], queries: list[int], contexts: list[int], shapes: Shapes
) -> dict[Window, PrefillTables]:
    items, blocks = on_gpu["prefill_items"].view(-1, 5), on_gpu["prefill_blocks"].view(len(queries), -1)
    return {window: PrefillTables(queries, contexts, blocks, items, window) for window in shapes.windows}


def _lora_tables(
    on_gpu: dict[str, Tensor], plan: LoraPlan | None, num_tokens: int, bucket: int | None
) -> LoraTables | None:
    if "lora_counts" not in on_gpu:
        return None
    return LoraTables(
        rows=on_gpu["lora_rows"],
        pages=on_gpu["lora_pages"],
        shrink=on_gpu["lora_shrink"].view(-1, 4),
        expand=on_gpu["lora_expand"].view(-1, 4),
        counts=on_gpu["lora_counts"],
        most_rows=len(on_gpu["lora_rows"]),
        most_places=_MAX_PLACES if plan is None or bucket is not None else plan.num_places,
        num_tokens=num_tokens,
        plan=plan if bucket is None else None,
    )
