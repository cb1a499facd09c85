"""The model on a GPU, with its KV cache: chunks in, tokens out. Decodes replay a graph of their bucket's size."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels import gpu
from worker.engine.blocks import BLOCK_SIZE
from worker.engine.gpu_batch import Shapes, StepTables, buffer_words, put_step
from worker.engine.gpu_sampler import GpuSampler
from worker.engine.graphs import DecodeGraphs, Graph, bucket_sizes, cuda_graphs
from worker.engine.pending import Pending, StepResult
from worker.engine.pooling import pool
from worker.engine.prompt_logprobs import is_wanted, score_prompts
from worker.engine.request import TokenLogprobs
from worker.engine.result_buffer import Fetched, ResultBuffer
from worker.engine.sequence import Chunk, Sequence
from worker.engine.step_buffer import StepBuffer
from worker.engine.token_logprobs import Wish, wish_of
from worker.guided.masks import MaskFiller
from worker.lora.store import LoraStore
from worker.model.gpu_forward import forward, logits
from worker.model.llama import LlamaModel
from worker.model.rotary import rope_tables

log = logging.getLogger("tiergate.engine")


class GpuRunner:
    """As `worker.engine.runner.Runner`; not thread-safe. At most two launches may be unread. The cache has one or a few
    more blocks than the scheduler knows, which belong to the rows that pad a graph's batch."""

    def __init__(
        self,
        model: LlamaModel,
        lora: LoraStore,
        sampler: GpuSampler,
        *,
        num_blocks: int,
        max_model_len: int,
        max_seqs: int,
        max_tokens: int,
        is_eager: bool = False,
        new_graph: Callable[[], Graph] | None = None,
    ) -> None:
        config, device, dtype = model.config, model.embedding.device, model.embedding.dtype
        self._masks = MaskFiller(config.vocab_size)
        self._model, self._lora, self._sampler = model, lora, sampler
        buckets = bucket_sizes(max_seqs)
        shape = (num_blocks + -(-buckets[-1] // BLOCK_SIZE), BLOCK_SIZE, 2 * config.num_kv_heads, config.head_dim)
        self._caches = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        cos, sin = (each.to(device) for each in rope_tables(config.rope, config.head_dim, max_model_len, dtype))
        has_adapters = model.layers[0].attention.qkv.pages is not None
        self._shapes = Shapes(config, dtype.itemsize, max_model_len, has_adapters, num_blocks, cos, sin)
        words = buffer_words(self._shapes, max_seqs=max_seqs, max_tokens=max_tokens)
        self._buffer = StepBuffer(words, device)
        self._results = ResultBuffer(max(buckets[-1], max_seqs) * sampler.words_a_row, device)
        self._tables: StepTables | None = None
        self._graphs: DecodeGraphs | None = None
        if not is_eager and not gpu.refused():
            self._graphs = DecodeGraphs(buckets, self._forward_rows, self._choose, new_graph=new_graph or cuda_graphs())
            with torch.inference_mode():
                self._graphs.capture(lambda size: self._put([], size))

    def launch(self, chunks: list[Chunk]) -> Pending:
        """Whatever it raises, the same chunks can be launched again, unless the GPU is lost."""
        yielding = [chunk.sequence for chunk in chunks if chunk.yields]
        try:
            with torch.inference_mode():
                pending = self._launch(chunks, yielding)
        except BaseException:
            self._sampler.doubt(yielding)
            raise
        self._sampler.confirm(yielding)
        return pending

    @property
    def is_lost(self) -> bool:
        """After an illegal address, every driver call fails until the process ends. After a shortage of memory none
        does, and the memory that torch keeps for later steps is given back."""
        if self._model.embedding.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:
            return True
        return False

    def close(self) -> None:
        """End the runner's threads; it launches nothing more."""
        self._masks.close()

    def take_memory(self) -> None:
        """Nothing to do: the memory is already taken."""

    def _launch(self, chunks: list[Chunk], yielding: list[Sequence]) -> Pending:
        needs_states = any(chunk.sequence.request.pooling is not None or is_wanted(chunk) for chunk in chunks)
        is_decode = all(chunk.is_decode for chunk in chunks)
        bucket = self._graphs.size_for(len(chunks)) if self._graphs and is_decode and not needs_states else None
        self._put(chunks, bucket)
        filling = self._masks.begin([sequence.matcher for sequence in yielding])
        states: Tensor | None = None
        try:
            if bucket is None:
                states = self._forward()
            else:
                assert self._graphs is not None
                self._graphs.replay_forward(bucket)
        finally:
            # The matchers must not be touched until this result is there.
            masks = None if filling is None else filling.result()
        if masks is not None:
            self._sampler.allow(yielding, masks)
        pooled: dict[Sequence, Any] = {}
        scored: dict[Sequence, list[TokenLogprobs]] = {}
        if states is None:
            assert self._graphs is not None and bucket is not None
            num_rows, words = bucket, self._graphs.replay_choice(bucket)
        else:
            num_rows, words = len(yielding), self._choose(self._output_rows(states))
            if needs_states:
                # Rare; the host waits here for the states.
                pooled, scored = pool(chunks, states, self._model), score_prompts(chunks, states, self._model)
        fetched = self._results.fetch(self._sampler.wanted_words(words, yielding, num_rows))
        wishes = [wish_of(sequence.request.sampling) for sequence in yielding]
        return _Launched(fetched, self._sampler, wishes, num_rows, pooled, scored)

    def _put(self, chunks: list[Chunk], bucket: int | None) -> None:
        self._tables = put_step(
            self._buffer, chunks, self._shapes, self._sampler, slot_pages=self._lora.slot_pages, bucket=bucket
        )

    def _forward_rows(self, size: int) -> Tensor:
        """The states that `_choose` needs, of the step in the buffer."""
        assert self._tables is not None and self._tables.forward.num_decodes == size
        return self._output_rows(self._forward())

    def _forward(self) -> Tensor:
        """States of all tokens."""
        assert self._tables is not None
        step, feeds = self._tables.forward, self._tables.feeds
        newest = self._sampler.last.index_select(0, feeds.clamp(min=0))
        fed = torch.where(feeds < 0, step.token_ids, newest)
        return forward(self._model, replace(step, token_ids=fed), self._caches)

    def _output_rows(self, states: Tensor) -> Tensor:
        assert self._tables is not None
        return states.index_select(0, self._tables.forward.output_rows)

    def _choose(self, rows: Tensor) -> Tensor:
        assert self._tables is not None
        return self._sampler.choose(logits(self._model, rows), self._tables.sample)


@dataclass(frozen=True, slots=True)
class _Launched:
    fetched: Fetched
    sampler: GpuSampler
    wishes: list[Wish | None]
    num_rows: int
    pooled: dict[Sequence, Any]
    scored: dict[Sequence, list[TokenLogprobs]]
    is_done: bool = False

    def wait(self) -> StepResult:
        tokens = self.sampler.read(self.fetched.read(), self.wishes, self.num_rows)
        return StepResult(tokens, self.pooled, self.scored)
