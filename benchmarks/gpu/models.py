"""Models with random weights on the device, run by the product's own runner, and decode steps."""

from collections.abc import Sequence as Indexed
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kernels.linear import pack
from worker.engine.blocks import BLOCK_SIZE
from worker.engine.gpu_runner import GpuRunner
from worker.engine.gpu_sampler import GpuSampler
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.sequence import Chunk, Sequence
from worker.lora.pages import AdapterPages, pages_needed
from worker.model.config import ModelConfig
from worker.model.layers import Attention, DecoderLayer, GatedMLP, Linear
from worker.model.llama import LlamaModel
from worker.model.rope_config import RopeConfig


@dataclass(frozen=True)
class Shape:
    hidden: int
    wide: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int

    def weight_bytes(self, itemsize: int) -> int:
        """Bytes of weights that each step reads: the layers and the head."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        return itemsize * (self.num_layers * self.hidden * (heads + 3 * self.wide) + self.vocab * self.hidden)

    def kv_bytes(self, num_tokens: int, itemsize: int) -> int:
        return 2 * itemsize * self.num_layers * self.num_kv_heads * self.head_dim * num_tokens

    def adapter_bytes(self, rank: int, itemsize: int) -> int:
        """Bytes of one adapter on all projections. Each slice of a fused projection has its own A matrix."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        sizes = (
            3 * self.hidden + q + 2 * kv,
            q + self.hidden,
            2 * self.hidden + 2 * self.wide,
            self.wide + self.hidden,
        )
        return itemsize * rank * self.num_layers * sum(sizes)


LLAMA_7B = Shape(4096, 11008, 32, 32, 32, 128, 32_000)
LLAMA_8B = Shape(4096, 14336, 32, 32, 8, 128, 128_256)
TINY = Shape(128, 128, 1, 2, 1, 64, 300)


def config_of(shape: Shape, max_positions: int) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.wide,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rms_eps=1e-5,
        max_positions=max_positions,
        rope=RopeConfig(),
        tie_embeddings=False,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=(None,) * shape.num_layers,
        dtype="bfloat16",
        eos_token_ids=(),
    )


class RandomModel:
    """A model's weights, with pages of one adapter for each of `ranks`, one after the other; no pages without ranks."""

    def __init__(
        self, shape: Shape, *, ranks: Indexed[int], device: str, dtype: torch.dtype, max_positions: int = 1088
    ) -> None:
        self.shape, self.ranks, self._dtype, self._device = shape, list(ranks), dtype, device
        self.config = config_of(shape, max_positions)
        self.slot_pages: list[list[int]] = []
        first = 0
        for rank in ranks:
            self.slot_pages.append(list(range(first, first + pages_needed(rank))))
            first += pages_needed(rank)
        layers: list[dict[str, Any]] = [{} for _ in range(shape.num_layers)]
        if ranks:
            layers = AdapterPages(self.config, dtype, num_pages=first, device=device).layers
            for projections in layers:
                for pages in projections.values():
                    pages.a.normal_(std=shape.hidden**-0.5)
                    pages.b.normal_(std=1e-2)
                    pages.ranks.copy_(_page_ranks(ranks)[:, None].expand_as(pages.ranks))
        self.model = LlamaModel(
            self.config,
            self._weight(shape.vocab, shape.hidden),
            [self._layer(pages) for pages in layers],
            torch.ones(shape.hidden, dtype=dtype, device=device),
            pack(self._weight(shape.vocab, shape.hidden)),
            None,
        )

    def runner(self, *, batch: int, length: int, **options: Any) -> GpuRunner:
        """A runner for steps of up to `batch` sequences of up to `length` tokens."""
        device = torch.device(self._device)
        sampler = GpuSampler(self.shape.vocab, (), max_seqs=batch, device=device)
        return GpuRunner(
            self.model,
            SimpleNamespace(slot_pages=self.slot_pages),
            sampler,
            num_blocks=batch * (-(-length // BLOCK_SIZE) + 1),
            max_model_len=self.config.max_positions,
            max_seqs=batch,
            max_tokens=max(batch, 64),
            **options,
        )

    def _weight(self, out_size: int, in_size: int) -> Tensor:
        weight = torch.empty(out_size, in_size, dtype=self._dtype, device=self._device)
        return weight.normal_(std=in_size**-0.5)

    def _layer(self, pages: dict[str, Any]) -> DecoderLayer:
        shape, norm = self.shape, torch.ones(self.shape.hidden, dtype=self._dtype, device=self._device)
        heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim

        def linear(name: str, out_size: int, in_size: int) -> Linear:
            return Linear(pack(self._weight(out_size, in_size)), None, pages.get(name))

        attention = Attention(
            qkv=linear("qkv", heads, shape.hidden),
            o=linear("o", shape.hidden, shape.num_heads * shape.head_dim),
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            q_norm=None,
            k_norm=None,
            eps=1e-5,
            window=None,
        )
        mlp = GatedMLP(linear("gate_up", 2 * shape.wide, shape.hidden), linear("down", shape.hidden, shape.wide))
        return DecoderLayer(norm, attention, norm, mlp, 1e-5)


def decoding(batch: int, length: int, slots: Indexed[int], *, num_logprobs: int | None = None) -> list[Chunk]:
    """The chunks of a decode step: `batch` sequences of `length` tokens, of which only the last is not computed yet.

    slots: the adapter slots that the sequences use in turn.
    """
    chunks = []
    each = -(-length // BLOCK_SIZE)
    for i in range(batch):
        sampling = SamplingParams(temperature=1.0, seed=i, num_logprobs=num_logprobs)
        request = EngineRequest(request_id=str(i), prompt_ids=[], sampling=sampling)
        sequence = Sequence(str(i), request, [(7 * i + j) % 100 for j in range(length)], length, b"", 0.0)
        sequence.adapter_slot = slots[i % len(slots)]
        sequence.block_ids = list(range(i * each, (i + 1) * each))
        sequence.num_computed = length - 1
        chunks.append(Chunk(sequence, 1))
    return chunks


def _page_ranks(ranks: Indexed[int]) -> Tensor:
    return torch.tensor([min(16, rank - 16 * i) for rank in ranks for i in range(pages_needed(rank))])
