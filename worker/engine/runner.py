"""The model on the CPU, with its KV cache: chunks in, tokens out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine import kv_memory
from worker.engine.batch import make_inputs
from worker.engine.blocks import BLOCK_SIZE
from worker.engine.pending import Done, Pending, StepResult
from worker.engine.pooling import pool
from worker.engine.prompt_logprobs import is_wanted, score_prompts
from worker.engine.request import TokenLogprobs
from worker.engine.sampler import Sampler
from worker.engine.sequence import Chunk, Sequence
from worker.guided.masks import MaskFiller
from worker.lora.store import LoraStore
from worker.model.config import ModelConfig
from worker.model.llama import LlamaModel
from worker.model.rotary import rope_tables


def block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory of one block in all layers."""
    per_token = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
    return BLOCK_SIZE * per_token * config.num_layers


@dataclass(frozen=True)
class StepOutputs:
    """logits [number of chunks that yield a token, vocab] fp32, in the chunks' order; pooled: see `pool`;
    prompt_logprobs: see `score_prompts`."""

    logits: Tensor
    pooled: dict[Sequence, Tensor]
    prompt_logprobs: dict[Sequence, list[TokenLogprobs]]


class Runner:
    """Owns the KV cache; not thread-safe."""

    def __init__(
        self,
        model: LlamaModel,
        lora: LoraStore,
        sampler: Sampler,
        *,
        num_blocks: int,
        max_model_len: int,
        is_deterministic: bool = False,
    ) -> None:
        config = model.config
        dtype = model.embedding.dtype
        self._model = model
        self._lora = lora
        self._sampler = sampler
        self._masks = MaskFiller(config.vocab_size)
        self._is_deterministic = is_deterministic
        shape = (num_blocks, BLOCK_SIZE, 2 * config.num_kv_heads, config.head_dim)
        self._caches = [kv_memory.zeros(shape, dtype) for _ in range(config.num_layers)]
        self._windows = frozenset(config.windows)
        self._cos, self._sin = rope_tables(config.rope, config.head_dim, max_model_len, dtype)

    def launch(self, chunks: list[Chunk]) -> Pending:
        """Whatever it raises, the same chunks can be launched again."""
        yielding = [chunk.sequence for chunk in chunks if chunk.yields]
        filling = self._masks.begin([sequence.matcher for sequence in yielding])
        try:
            outputs = self.run(chunks)
        finally:
            # The matchers must not be touched until this result is there.
            masks = None if filling is None else filling.result()
        tokens = self._sampler.choose(outputs.logits, yielding, masks)
        return Done(StepResult(tokens, outputs.pooled, outputs.prompt_logprobs))

    def run(self, chunks: list[Chunk]) -> StepOutputs:
        with torch.inference_mode():
            inputs = make_inputs(
                chunks,
                self._cos,
                self._sin,
                slot_pages=self._lora.slot_pages,
                windows=self._windows,
                is_deterministic=self._is_deterministic,
            )
            if not inputs.has_pooling and not any(map(is_wanted, chunks)):
                x = self._model.forward(inputs, self._caches)
                return StepOutputs(self._model.logits(x), {}, {})
            x = self._model.forward(inputs, self._caches, is_whole=True)
            pooled, scored = pool(chunks, x, self._model), score_prompts(chunks, x, self._model)
            return StepOutputs(self._model.logits(x.index_select(0, inputs.output_rows)), pooled, scored)

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be computed any more; asked after a launch that raised."""
        return False

    def close(self) -> None:
        """End the runner's threads; it launches nothing more."""
        self._masks.close()

    def take_memory(self) -> None:
        """Take all of the cache's memory, which is otherwise taken as it is first written. Any thread may call this."""
        kv_memory.take(self._caches)
