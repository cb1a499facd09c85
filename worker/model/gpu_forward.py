"""The model's forward pass on a GPU: decodes first, then prompt chunks. No launch depends on a sequence's length."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.linear import linear
from kernels.lora import LoraTables, project
from kernels.paged_decode import DecodeTables, paged_decode
from kernels.paged_prefill import PrefillTables, paged_prefill
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_and_store import rope_and_store
from kernels.silu_mul import silu_mul
from worker.model.layers import Attention, Linear
from worker.model.llama import LlamaModel

Window = int | None


@dataclass(frozen=True, slots=True)
class GpuStep:
    """One step's batch; indices are int32, on the GPU. The first num_decodes tokens are their sequences' only new ones.

    decode, prefill: one entry per attention window in the model; prefill is empty in a step of decodes only. lora: None
    if the model has no adapters. cos, sin: the whole rope tables. output_rows: the rows whose logits are wanted.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    num_decodes: int
    decode: dict[Window, DecodeTables]
    prefill: dict[Window, PrefillTables]
    lora: LoraTables | None
    cos: Tensor
    sin: Tensor
    output_rows: Tensor


def forward(model: LlamaModel, step: GpuStep, caches: list[Tensor]) -> Tensor:
    """Hidden states of all tokens after the last layer. Stores the tokens' keys and values in the caches."""
    x = torch.nn.functional.embedding(step.token_ids, model.embedding)
    delta: Tensor | None = None
    for layer, cache in zip(model.layers, caches, strict=True):
        normed = _add_norm(x, delta, layer.attention_norm, layer.eps)
        normed = _add_norm(x, _attend(layer.attention, normed, cache, step), layer.mlp_norm, layer.eps)
        delta = _project(layer.mlp.down, silu_mul(_project(layer.mlp.gate_up, normed, step)), step)
    return x if delta is None else x.add_(delta)


def logits(model: LlamaModel, states: Tensor) -> Tensor:
    """[rows, vocab] in the model's dtype; the sampler widens it."""
    return linear(model.final_states(states), model.head)


def _add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x, weight, eps=eps) if delta is None else add_rms_norm(x, delta, weight, eps=eps)


def _project(projection: Linear, x: Tensor, step: GpuStep) -> Tensor:
    def product() -> Tensor:
        return linear(x, projection.weight, projection.bias)

    if step.lora is None:
        return product()
    assert projection.pages is not None
    return project(product, x, projection.pages, step.lora)


def _attend(attention: Attention, x: Tensor, cache: Tensor, step: GpuStep) -> Tensor:
    a = attention
    heads = _project(a.qkv, x, step).view(len(x), -1, a.head_dim)
    queries = heads[:, : a.num_heads]
    if a.q_norm is not None and a.k_norm is not None:
        keys = heads[:, a.num_heads : a.num_heads + a.num_kv_heads]
        queries.copy_(rms_norm(queries, a.q_norm, eps=a.eps))
        keys.copy_(rms_norm(keys, a.k_norm, eps=a.eps))
    rope_and_store(heads, cache, step.cos, step.sin, step.positions, step.slots)
    n, scale = step.num_decodes, a.head_dim**-0.5
    outs = []
    if n:
        outs.append(paged_decode(queries[:n], cache, step.decode[a.window], scale=scale))
    if n < len(x):
        outs.append(paged_prefill(queries[n:], cache, step.prefill[a.window], scale=scale))
    return _project(a.o, outs[0] if len(outs) == 1 else torch.cat(outs), step)
