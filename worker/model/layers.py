"""The parts of a Llama-family layer: plain tensors, fused where projections share their input."""

from dataclasses import dataclass

from torch import Tensor

from kernels.kv_store import store_kv
from kernels.linear import PackedWeight, linear
from kernels.lora import LoraPages, LoraPlan, add_lora
from kernels.paged_attention import AttentionPlan, paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's batch. slots: where the new tokens' keys and values go; cos, sin: the rope tables' rows.

    attention: one plan per attention window in the model. lora: which tokens use which adapter; None when none does.
    output_rows: the rows whose logits are wanted; rows_lora: lora for these rows alone, by position in output_rows.
    has_pooling: the final states of some tokens are wanted.
    """

    token_ids: Tensor
    slots: Tensor
    cos: Tensor
    sin: Tensor
    attention: dict[int | None, AttentionPlan]
    lora: LoraPlan | None
    output_rows: Tensor
    rows_lora: LoraPlan | None
    has_pooling: bool


@dataclass(slots=True)
class Linear:
    """y = x weight^T + bias, plus each token's adapter."""

    weight: PackedWeight
    bias: Tensor | None
    pages: LoraPages | None

    def __call__(self, x: Tensor, inputs: StepInputs) -> Tensor:
        y = linear(x, self.weight, self.bias)
        if inputs.lora is not None:
            assert self.pages is not None
            add_lora(y, x, self.pages, inputs.lora)
        return y


@dataclass(slots=True)
class Attention:
    """qkv holds the rows of q, k, v in this order. q_norm, k_norm: only Qwen3 normalises q and k heads.

    window: the number of tokens attended to, counting the token itself; None for all.
    """

    qkv: Linear
    o: Linear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    window: int | None

    def __call__(self, x: Tensor, cache: Tensor, inputs: StepInputs) -> Tensor:
        heads = self.qkv(x, inputs).view(len(x), -1, self.head_dim)
        num_rotated = self.num_heads + self.num_kv_heads
        if self.q_norm is not None and self.k_norm is not None:
            heads[:, : self.num_heads] = rms_norm(heads[:, : self.num_heads], self.q_norm, eps=self.eps)
            keys = heads[:, self.num_heads : num_rotated]
            keys.copy_(rms_norm(keys, self.k_norm, eps=self.eps))
        rope(heads[:, :num_rotated], inputs.cos, inputs.sin)
        store_kv(heads[:, self.num_heads :], cache, inputs.slots)
        plan = inputs.attention[self.window]
        out = paged_attention(heads[:, : self.num_heads], cache, plan, scale=self.head_dim**-0.5)
        return self.o(out, inputs)


@dataclass(slots=True)
class GatedMLP:
    """gate_up holds the rows of gate, then up."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor, inputs: StepInputs) -> Tensor:
        return self.down(silu_mul(self.gate_up(x, inputs)), inputs)


@dataclass(slots=True)
class DecoderLayer:
    attention_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    mlp: GatedMLP
    eps: float

    def __call__(self, x: Tensor, cache: Tensor, inputs: StepInputs) -> Tensor:
        x = x.add_(self.attention(rms_norm(x, self.attention_norm, eps=self.eps), cache, inputs))
        return x.add_(self.mlp(rms_norm(x, self.mlp_norm, eps=self.eps), inputs))
