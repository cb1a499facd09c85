"""Causal attention of new tokens over a paged KV cache: decodes and prefill chunks in one call, grouped-query heads."""

from torch import Tensor

from kernels.paged_attention import native, reference, tiles
from kernels.paged_attention.plan import AttentionPlan, plan_attention

__all__ = ["AttentionPlan", "paged_attention", "plan_attention"]


def paged_attention(q: Tensor, cache: Tensor, plan: AttentionPlan, *, scale: float) -> Tensor:
    """softmax(scale * q k^T) v for each token over its sequence's cached tokens up to itself.

    q [tokens, heads, head_dim], last dimension dense; cache as in `kernels.kv_store`, this step's keys and values
    already stored; plan from `plan_attention`, made once per step for all layers. Returns [tokens, heads * head_dim].

    A token's result is bit-identical in any batch and in any chunk of its prompt if the native kernel runs or the plan
    is deterministic. Torch's own path keeps that in float32 only: in half types, on processors with AMX, torch lays out
    keys and values anew for 64 queries or more, and then sums in another order.
    Raises ValueError on a shape mismatch.
    """
    kv_heads = cache.shape[2] // 2
    if q.shape[0] != plan.num_tokens or q.shape[1] % kv_heads or q.shape[2] != cache.shape[3]:
        raise ValueError(f"paged_attention: q {tuple(q.shape)} does not fit cache {tuple(cache.shape)} or the plan")
    if native.can_run(q, cache):
        return native.paged_attention(q, cache, plan, scale=scale)
    attend = tiles.paged_attention if plan.is_deterministic else reference.paged_attention
    return attend(q, cache, plan, scale=scale)
