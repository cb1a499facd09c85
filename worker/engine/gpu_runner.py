"""The model on a GPU, with its KV cache: chunks in, logits out. Decodes replay a graph of their bucket's size."""

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from kernels import gpu
from worker.engine.blocks import BLOCK_SIZE
from worker.engine.gpu_batch import Shapes, buffer_words, put_step
from worker.engine.graphs import CudaGraph, DecodeGraphs, Graph, bucket_sizes
from worker.engine.pooling import pool
from worker.engine.prompt_logprobs import is_wanted, score_prompts
from worker.engine.runner import StepOutputs
from worker.engine.sequence import Chunk
from worker.engine.step_buffer import StepBuffer
from worker.lora.store import LoraStore
from worker.model.gpu_forward import GpuStep, forward, logits
from worker.model.llama import LlamaModel
from worker.model.rotary import rope_tables

log = logging.getLogger("tiergate.engine")


class GpuRunner:
    """As `worker.engine.runner.Runner`; not thread-safe. The cache has one block more than the scheduler knows: the
    rows that fill a graph's batch own it."""

    def __init__(
        self,
        model: LlamaModel,
        lora: LoraStore,
        *,
        num_blocks: int,
        max_model_len: int,
        max_seqs: int,
        max_tokens: int,
        is_eager: bool = False,
        new_graph: Callable[[], Graph] = CudaGraph,
    ) -> None:
        config, device, dtype = model.config, model.embedding.device, model.embedding.dtype
        self._model, self._lora = model, lora
        shape = (num_blocks + -(-max_seqs // BLOCK_SIZE), BLOCK_SIZE, 2 * config.num_kv_heads, config.head_dim)
        self._caches = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        cos, sin = (each.to(device) for each in rope_tables(config.rope, config.head_dim, max_model_len, dtype))
        has_adapters = model.layers[0].attention.qkv.pages is not None
        self._shapes = Shapes(config, dtype.itemsize, max_model_len, has_adapters, num_blocks, cos, sin)
        words = buffer_words(self._shapes, max_seqs=max_seqs, max_tokens=max_tokens)
        self._buffer = StepBuffer(words, device)
        self._step: GpuStep | None = None
        self._graphs: DecodeGraphs | None = None
        if not is_eager and not gpu.refused():
            self._graphs = DecodeGraphs(bucket_sizes(max_seqs), self._compute, new_graph=new_graph)
            with torch.inference_mode():
                self._graphs.capture(lambda size: self._put([], size))

    def run(self, chunks: list[Chunk]) -> StepOutputs:
        with torch.inference_mode():
            needs_states = any(chunk.sequence.request.pooling is not None or is_wanted(chunk) for chunk in chunks)
            is_decode = all(chunk.is_decode for chunk in chunks)
            bucket = self._graphs.size_for(len(chunks)) if self._graphs and is_decode and not needs_states else None
            self._put(chunks, bucket)
            if bucket is not None:
                assert self._graphs is not None
                return StepOutputs(self._graphs.replay(bucket)[: len(chunks)], {}, {})
            assert self._step is not None
            x = forward(self._model, self._step, self._caches)
            out = logits(self._model, x.index_select(0, self._step.output_rows))
            if not needs_states:
                return StepOutputs(out, {}, {})
            pooled, scored = pool(chunks, x, self._model), score_prompts(chunks, x, self._model)
            return StepOutputs(out, pooled, scored)

    def take_memory(self) -> None:
        """It is taken already."""

    def _put(self, chunks: list[Chunk], bucket: int | None) -> None:
        self._step = put_step(self._buffer, chunks, self._shapes, slot_pages=self._lora.slot_pages, bucket=bucket)

    def _compute(self, size: int) -> Tensor:
        """Of the step in the buffer, all rows."""
        assert self._step is not None and self._step.num_decodes == size
        return logits(self._model, forward(self._model, self._step, self._caches))
