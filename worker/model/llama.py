"""Llama and its siblings (Mistral, Qwen2, Qwen3), on a paged KV cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import kernels.linear
from kernels.decoder_layers import DecoderLayers, LayerWeights, Projection, can_run
from kernels.linear import PackedWeight, linear
from kernels.lora import LoraPages
from kernels.rms_norm import rms_norm
from worker.model.config import ModelConfig
from worker.model.layers import Attention, DecoderLayer, GatedMLP, Linear, StepInputs
from worker.model.weights import Checkpoint

FUSED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Each of our fused projections, and the Hugging Face projections whose rows it holds, in order."""


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Hugging Face's projection name -> (out, in)."""
    hidden, wide = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q_proj": (q, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, q),
        "gate_proj": (wide, hidden),
        "up_proj": (wide, hidden),
        "down_proj": (hidden, wide),
    }


@dataclass(slots=True)
class LlamaModel:
    config: ModelConfig
    embedding: Tensor
    layers: list[DecoderLayer]
    norm: Tensor
    head: PackedWeight
    stack: DecoderLayers | None
    """The same layers as a single call; None where the native kernels cannot run."""

    def forward(self, inputs: StepInputs, caches: list[Tensor], *, is_whole: bool = False) -> Tensor:
        """Hidden states after the last layer: of inputs.output_rows, or of all tokens if is_whole. Stores the keys and
        values of all tokens."""
        x = torch.nn.functional.embedding(inputs.token_ids, self.embedding)
        if self.stack is not None:
            plan = next(iter(inputs.attention.values()))
            return self.stack(
                x,
                caches,
                inputs.cos,
                inputs.sin,
                inputs.slots,
                plan,
                rows=None if is_whole else inputs.output_rows,
                lora=inputs.lora,
                rows_lora=None if is_whole else inputs.rows_lora,
            )
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, inputs)
        return x if is_whole else x.index_select(0, inputs.output_rows)

    def final_states(self, x: Tensor) -> Tensor:
        """The last hidden state, as transformers calls it, of rows that `forward` returned."""
        return rms_norm(x, self.norm, eps=self.config.rms_eps)

    def logits(self, x: Tensor) -> Tensor:
        """[rows, vocab] fp32, of rows that `forward` returned."""
        return linear(self.final_states(x), self.head).float()


def load_llama(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    *,
    pages: Sequence[Mapping[str, LoraPages]] = (),
    is_deterministic: bool = False,
    device: str = "cpu",
) -> LlamaModel:
    """pages: each layer's adapter pages by fused projection; empty without adapters. is_deterministic: as in
    `kernels.linear.pack`. Raises CheckpointError."""
    pack = partial(kernels.linear.pack, is_deterministic=is_deterministic)
    vocab_shape = (config.vocab_size, config.hidden_size)
    with Checkpoint(folder, device=device) as checkpoint:
        embedding = checkpoint.read("model.embed_tokens.weight", vocab_shape, dtype)
        layers = []
        for i in range(config.num_layers):
            layers.append(_load_layer(checkpoint, config, i, dtype, pack, pages[i] if pages else {}))
            checkpoint.unmap()
        norm = checkpoint.read("model.norm.weight", (config.hidden_size,), dtype)
        if config.tie_embeddings:
            head = pack(embedding)
        else:
            head = _pack_mapped([checkpoint.read("lm_head.weight", vocab_shape, dtype, is_kept=False)], pack)
    return LlamaModel(config, embedding, layers, norm, head, _stack(config, layers))


def _load_layer(
    checkpoint: Checkpoint,
    config: ModelConfig,
    i: int,
    dtype: torch.dtype,
    pack: Callable[..., PackedWeight],
    pages: Mapping[str, LoraPages],
) -> DecoderLayer:
    prefix = f"model.layers.{i}."
    shapes = projection_shapes(config)

    def vector(name: str, size: int) -> Tensor:
        return checkpoint.read(f"{prefix}{name}.weight", (size,), dtype)

    def fused(name: str, block: str, *, has_bias: bool) -> Linear:
        parts = FUSED[name]
        weights = [
            checkpoint.read(f"{prefix}{block}.{part}.weight", shapes[part], dtype, is_kept=False) for part in parts
        ]
        biases = [
            checkpoint.read(f"{prefix}{block}.{part}.bias", shapes[part][:1], dtype) for part in parts if has_bias
        ]
        return Linear(_pack_mapped(weights, pack), _join(biases) if biases else None, pages.get(name))

    attention = Attention(
        qkv=fused("qkv", "self_attn", has_bias=config.qkv_bias),
        o=fused("o", "self_attn", has_bias=config.o_bias),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        q_norm=vector("self_attn.q_norm", config.head_dim) if config.qk_norm else None,
        k_norm=vector("self_attn.k_norm", config.head_dim) if config.qk_norm else None,
        eps=config.rms_eps,
        window=config.windows[i],
    )
    mlp = GatedMLP(
        gate_up=fused("gate_up", "mlp", has_bias=config.mlp_bias),
        down=fused("down", "mlp", has_bias=config.mlp_bias),
    )
    return DecoderLayer(
        attention_norm=vector("input_layernorm", config.hidden_size),
        attention=attention,
        mlp_norm=vector("post_attention_layernorm", config.hidden_size),
        mlp=mlp,
        eps=config.rms_eps,
    )


def _stack(config: ModelConfig, layers: list[DecoderLayer]) -> DecoderLayers | None:
    weights = [
        LayerWeights(
            attention_norm=layer.attention_norm,
            qkv=_projection(layer.attention.qkv),
            q_norm=layer.attention.q_norm,
            k_norm=layer.attention.k_norm,
            o=_projection(layer.attention.o),
            mlp_norm=layer.mlp_norm,
            gate_up=_projection(layer.mlp.gate_up),
            down=_projection(layer.mlp.down),
            window=layer.attention.window,
        )
        for layer in layers
    ]
    if not can_run(weights):
        return None
    return DecoderLayers(
        weights,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_eps,
    )


def _projection(linear: Linear) -> Projection:
    return Projection(linear.weight, linear.bias, linear.pages)


def _pack_mapped(weights: list[Tensor], pack: Callable[..., PackedWeight]) -> PackedWeight:
    """Stacks the weights by rows. They may alias the mapped file; the result does not."""
    packed = pack(*weights)
    return replace(packed, tensor=packed.tensor.clone()) if packed.tensor is weights[0] else packed


def _join(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
