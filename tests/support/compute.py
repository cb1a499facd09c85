"""A model and its cache without an engine: prompts in, logits out."""

import random
from functools import partial
from pathlib import Path

import torch

from worker.engine.blocks import BlockPool, blocks_needed
from worker.engine.request import EngineRequest
from worker.engine.runner import Runner
from worker.engine.sampler import Sampler
from worker.engine.sequence import Chunk, Sequence
from worker.lora.adapter import read_adapter
from worker.lora.pages import AdapterPages
from worker.lora.store import LoraStore
from worker.model.config import read_config
from worker.model.llama import load_llama
from worker.model.weights import target_dtype


class TinyRunner:
    """Runs sequences, which have names. Their blocks are scattered, as in a pool that has been in use."""

    def __init__(
        self,
        checkpoint: Path,
        *,
        dtype: str = "float32",
        adapters: dict[str, Path] | None = None,
        max_model_len: int | None = None,
        is_layer_by_layer: bool = False,
        is_deterministic: bool = False,
    ) -> None:
        config = read_config(checkpoint)
        torch_dtype = target_dtype(dtype, config, checkpoint)
        pages = AdapterPages(config, torch_dtype, num_pages=64)
        read = partial(read_adapter, config=config, dtype=torch_dtype)
        self._lora = LoraStore(pages, read, num_slots=16, max_host_bytes=1 << 28)
        for name, path in (adapters or {}).items():
            self._lora.add(name, read(path), path)
        self._lora.fill()
        model = load_llama(checkpoint, config, torch_dtype, pages=pages.layers, is_deterministic=is_deterministic)
        if is_layer_by_layer:
            model.stack = None
        self._runner = Runner(
            model,
            self._lora,
            Sampler(config.vocab_size, ()),
            num_blocks=97,
            max_model_len=max_model_len or config.max_positions,
        )
        self._pool = BlockPool(97)
        block_ids = self._pool.allocate(97)
        random.Random(0).shuffle(block_ids)
        self._pool.release(block_ids)
        self._sequences: dict[str, Sequence] = {}

    def extend(self, name: str, token_ids: list[int], *, adapter: str | None = None) -> torch.Tensor:
        return self.extend_all({name: token_ids}, adapters={name: adapter})[0]

    def extend_all(
        self, token_ids: dict[str, list[int]], *, adapters: dict[str, str | None] | None = None
    ) -> torch.Tensor:
        """Compute the new tokens of each sequence in one batch; logits after the last token of each, in order."""
        chunks = []
        for name, ids in token_ids.items():
            sequence = self._sequences.get(name) or self._start(name, (adapters or {}).get(name))
            sequence.token_ids = list(ids)
            missing = blocks_needed(len(ids)) - len(sequence.block_ids)
            sequence.block_ids += self._pool.allocate(missing)
            chunks.append(Chunk(sequence, sequence.num_uncomputed))
        logits = self._runner.run(chunks).logits
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_tokens
        return logits

    def free(self, name: str) -> None:
        self._pool.release(self._sequences.pop(name).block_ids)

    def _start(self, name: str, adapter: str | None) -> Sequence:
        request = EngineRequest(request_id=name, prompt_ids=[0], adapter=adapter)
        slot = -1 if adapter is None else self._lora.find(adapter).slot
        self._sequences[name] = Sequence(name, request, [], 0, b"", 0.0, slot)
        return self._sequences[name]
