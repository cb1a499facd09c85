"""All layers of a Llama-like decoder in one call, for steps in which nothing happens between their operations.

A small model's step is a hundred operations of about ten microseconds each; Python's overhead, and the GIL's switches
between threads, would cost as much again. The arithmetic is that of the single operations, bit for bit: `rms_norm`,
`linear`, `add_lora`, `rope`, `store_kv`, `paged_attention`, `silu_mul`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.decoder_layers import native
from kernels.linear import PackedWeight
from kernels.lora import LoraPages, LoraPlan
from kernels.lora.native import can_add
from kernels.paged_attention import AttentionPlan
from kernels.paged_attention.native import KEYS_AT_ONCE

__all__ = ["DecoderLayers", "LayerWeights", "Projection", "can_run"]


@dataclass(frozen=True, slots=True)
class Projection:
    """pages: the adapters' pages; None without adapters."""

    weight: PackedWeight
    bias: Tensor | None
    pages: LoraPages | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """qkv holds the rows of q, k and v, gate_up those of gate and up. window: None to attend to all tokens before."""

    attention_norm: Tensor
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection
    window: int | None


def can_run(layers: Sequence[LayerWeights]) -> bool:
    """Whether all weights are packed for the native kernels."""
    return all(
        projection.weight.layout == "native"
        for layer in layers
        for projection in (layer.qkv, layer.o, layer.gate_up, layer.down)
    )


class DecoderLayers:
    def __init__(
        self, layers: Sequence[LayerWeights], *, num_heads: int, num_kv_heads: int, head_dim: int, eps: float
    ) -> None:
        """Keeps references to the weights, which must satisfy `can_run`. Raises ValueError on a mismatch."""
        for i, layer in enumerate(layers):
            _check_layer(i, layer, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        self._stack = native.Stack(layers, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, eps=eps)

    def __call__(
        self,
        x: Tensor,
        caches: Sequence[Tensor],
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        plan: AttentionPlan,
        *,
        rows: Tensor | None = None,
        lora: LoraPlan | None = None,
        rows_lora: LoraPlan | None = None,
    ) -> Tensor:
        """x [tokens, hidden] -> the states of `rows`, or of all tokens, after the last layer. Overwrites x, and writes
        the keys and values of all tokens into their slots.

        rows: int64, ascending; other rows skip everything after the last attention. caches: one per layer, as in
        `kernels.kv_store`; cos, sin as in `kernels.rope`; plan: only its block tables are used, not its window, since
        layers have their own. lora: the adapters of all tokens; rows_lora: those of `rows`, if these are not all, by
        position in `rows`. Raises ValueError on a mismatch.
        """
        num_tokens, num_kv_heads, head_dim = len(x), self._stack.num_kv_heads, self._stack.head_dim
        fits = (
            x.is_contiguous()
            and x.dtype == self._stack.dtype == cos.dtype == sin.dtype
            and cos.shape == sin.shape == (num_tokens, 1, head_dim)
            and cos.is_contiguous()
            and sin.is_contiguous()
            and slots.shape == (num_tokens,)
            and slots.dtype == torch.int64
            and slots.is_contiguous()
            and plan.num_tokens == num_tokens
            and (rows is None or _are_rows(rows, num_tokens))
            and (lora is None or lora.num_tokens == num_tokens)
            and (rows_lora is None or (rows is not None and rows_lora.num_tokens == len(rows)))
            and len(caches) == self._stack.num_layers
            and all(_is_cache(cache, caches[0].shape[1], num_kv_heads, head_dim, x.dtype) for cache in caches)
        )
        if not fits:
            raise ValueError(
                f"decoder_layers: x {tuple(x.shape)} {x.dtype} does not fit the tables, slots, rows or caches"
            )
        self._stack.run(x, caches, cos, sin, slots, plan, rows, lora, rows_lora)
        return x if rows is None else x[: len(rows)]


def _check_layer(i: int, layer: LayerWeights, *, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    hidden, wide, dtype = layer.qkv.weight.in_size, layer.down.weight.in_size, layer.qkv.weight.dtype
    sizes = {
        "qkv": (layer.qkv, (num_heads + 2 * num_kv_heads) * head_dim, hidden),
        "o": (layer.o, hidden, num_heads * head_dim),
        "gate_up": (layer.gate_up, 2 * wide, hidden),
        "down": (layer.down, hidden, wide),
    }
    for name, (projection, out_size, in_size) in sizes.items():
        weight, pages = projection.weight, projection.pages
        if (weight.out_size, weight.in_size, weight.dtype) != (out_size, in_size, dtype):
            raise ValueError(f"decoder_layers: layer {i}: {name} is {weight}, expected {in_size} -> {out_size} {dtype}")
        if not _is_vector(projection.bias, out_size, dtype):
            raise ValueError(f"decoder_layers: layer {i}: the bias of {name} does not fit {weight}")
        if pages is not None and not (
            (pages.a.shape[3], pages.b.shape[2], pages.a.dtype) == (in_size, out_size, dtype) and can_add(pages)
        ):
            raise ValueError(f"decoder_layers: layer {i}: the adapters' pages of {name} do not fit {weight}")
    norms = {
        "attention_norm": (layer.attention_norm, hidden),
        "mlp_norm": (layer.mlp_norm, hidden),
        "q_norm": (layer.q_norm, head_dim),
        "k_norm": (layer.k_norm, head_dim),
    }
    for name, (norm, size) in norms.items():
        if not _is_vector(norm, size, dtype):
            raise ValueError(f"decoder_layers: layer {i}: {name} is no vector of {size} {dtype}")


def _is_vector(vector: Tensor | None, size: int, dtype: torch.dtype) -> bool:
    return vector is None or (vector.shape == (size,) and vector.dtype == dtype and vector.is_contiguous())


def _is_cache(cache: Tensor, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> bool:
    has_shape = cache.shape[1:] == (block_size, 2 * num_kv_heads, head_dim) and KEYS_AT_ONCE % block_size == 0
    return has_shape and cache.dtype == dtype and cache.is_contiguous()


def _are_rows(rows: Tensor, num_tokens: int) -> bool:
    is_fit = rows.dtype == torch.int64 and rows.dim() == 1 and rows.is_contiguous()
    return is_fit and (len(rows) == 0 or (int(rows[0]) >= 0 and int(rows[-1]) < num_tokens))
