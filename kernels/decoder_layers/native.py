"""Passes the weights and a step's tensors to native.h."""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.lora import native as lora
from kernels.lora.plan import LoraPlan
from kernels.native import address, kind, library, mirrors, num_threads
from kernels.paged_attention import native as attention
from kernels.paged_attention.plan import NO_WINDOW, AttentionPlan

if TYPE_CHECKING:
    from kernels.decoder_layers import LayerWeights, Projection


@mirrors("Matrix")
class _Matrix(ctypes.Structure):
    _fields_ = (
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("lora", lora.Matrix),
        ("is_deterministic", ctypes.c_int64),
    )


@mirrors("Layer")
class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("attention_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, _Matrix) for name in ("qkv", "o", "gate_up", "down")),
        ("cache", ctypes.c_void_p),
        ("window", ctypes.c_int64),
    )


@mirrors("DecoderShape")
class _Shape(ctypes.Structure):
    _fields_ = (
        ("num_layers", ctypes.c_int64),
        ("hidden_size", ctypes.c_int64),
        ("intermediate_size", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("attention", attention.Shape),
    )


@mirrors("Step")
class _Step(ctypes.Structure):
    _fields_ = (
        ("num_tokens", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("x", "cos", "sin", "slots")),
        ("batch", attention.Batch),
        ("rows", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("lora", lora.Work),
        ("rows_lora", lora.Work),
    )


class Stack:
    def __init__(
        self, layers: "Sequence[LayerWeights]", *, num_heads: int, num_kv_heads: int, head_dim: int, eps: float
    ) -> None:
        # Kept, since the structs below point into their memory.
        self._weights = layers
        self.dtype: torch.dtype = layers[0].qkv.weight.dtype
        self.num_layers, self.num_kv_heads, self.head_dim = len(layers), num_kv_heads, head_dim
        self._layers = (_Layer * len(layers))(*map(_layer, layers))
        self._shape = _Shape(
            num_layers=len(layers),
            hidden_size=layers[0].qkv.weight.in_size,
            intermediate_size=layers[0].down.weight.in_size,
            eps=eps,
            attention=attention.Shape(num_heads, num_kv_heads, head_dim, 0, head_dim**-0.5),
        )

    def run(
        self,
        x: Tensor,
        caches: Sequence[Tensor],
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        plan: AttentionPlan,
        rows: Tensor | None,
        lora_plan: LoraPlan | None,
        rows_lora: LoraPlan | None,
    ) -> None:
        native = library()
        assert native is not None
        for layer, cache in zip(self._layers, caches, strict=True):
            layer.cache = address(cache)
        self._shape.attention.block_size = caches[0].shape[1]
        step = _Step(
            num_tokens=len(x),
            x=address(x),
            cos=address(cos),
            sin=address(sin),
            slots=address(slots),
            batch=attention.batch_of(plan),
            rows=address(rows),
            num_rows=len(x) if rows is None else len(rows),
            lora=lora.work_of(lora_plan),
            rows_lora=lora.work_of(rows_lora),
        )
        native.run_layers(
            kind(x.dtype),
            ctypes.addressof(self._shape),
            ctypes.addressof(self._layers),
            ctypes.addressof(step),
            num_threads(),
        )


def _layer(weights: "LayerWeights") -> _Layer:
    return _Layer(
        attention_norm=address(weights.attention_norm),
        q_norm=address(weights.q_norm),
        k_norm=address(weights.k_norm),
        mlp_norm=address(weights.mlp_norm),
        qkv=_matrix(weights.qkv),
        o=_matrix(weights.o),
        gate_up=_matrix(weights.gate_up),
        down=_matrix(weights.down),
        window=NO_WINDOW if weights.window is None else weights.window,
    )


def _matrix(projection: "Projection") -> _Matrix:
    pages = lora.matrix_of(projection.pages)
    weight = projection.weight
    return _Matrix(address(weight.tensor), address(projection.bias), pages, weight.is_deterministic)
