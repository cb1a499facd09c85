"""Cases of each kernel: how to launch it, torch's reference result, and the bytes and operations it needs."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import kernels.lora.reference
import kernels.paged_decode.reference
import kernels.paged_prefill.reference
import kernels.rms_norm.reference
import kernels.rope_and_store.reference
import kernels.sampling.reference
import kernels.silu_mul.reference
from kernels.lora import add_lora, empty_pages, plan_lora
from kernels.lora.tables import GPU_RUN, put_plan
from kernels.paged_decode import DecodeTables, num_programs, paged_decode, plan_decode
from kernels.paged_prefill import PrefillTables, paged_prefill, plan_prefill, tile_rows
from kernels.rms_norm import rms_norm
from kernels.rope_and_store import rope_and_store
from kernels.sampling.step import StepParameters, choose
from kernels.silu_mul import silu_mul

_BLOCK = 16
_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """num_bytes: bytes that must be read or written at least once. num_products: multiplications and additions.

    peer: the same operation by another library, if that is installed.
    """

    name: str
    run: Callable[[], Tensor]
    truth: Callable[[], Tensor]
    num_bytes: float
    num_products: float
    peer: Callable[[], object] | None = None


@dataclass(frozen=True)
class Shapes:
    hidden: int
    wide: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    rows: int
    decodes: Sequence[tuple[int, int]]
    prefills: Sequence[int]
    loras: Sequence[tuple[int, int, int]]
    """(batch, distinct adapters, rank)"""


LLAMA_8B = Shapes(
    hidden=4096,
    wide=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab=128_256,
    rows=256,
    decodes=((1, 1024), (32, 1024), (256, 1024), (1, 16384)),
    prefills=(2048, 8192),
    loras=(*((32, count, rank) for count in (1, 8, 32) for rank in (8, 16, 64)), (256, 128, 16)),
)
TINY = Shapes(
    hidden=128,
    wide=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab=700,
    rows=16,
    decodes=((2, 40),),
    prefills=(70,),
    loras=((3, 2, 20),),
)


def cases(shapes: Shapes, device: str) -> Iterator[Case]:
    """Yields one case at a time, since each holds its own memory."""
    yield _norm(shapes, device)
    yield _gate(shapes, device)
    yield _rope(shapes, device)
    yield _sample(shapes, device)
    for batch, length in shapes.decodes:
        yield _decode(shapes, device, batch, length)
    for length in shapes.prefills:
        yield _prefill(shapes, device, length)
    for batch, count, rank in shapes.loras:
        yield _lora(shapes, device, batch, count, rank)


def _normal(device: str, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=_DTYPE)


def _norm(shapes: Shapes, device: str) -> Case:
    x, weight = _normal(device, shapes.rows, shapes.hidden), _normal(device, shapes.hidden)
    truth = kernels.rms_norm.reference.rms_norm
    return Case(
        f"rms_norm, {shapes.rows} rows",
        lambda: rms_norm(x, weight, eps=1e-5),
        lambda: truth(x, weight, eps=1e-5),
        2 * x.nbytes,
        0,
    )


def _gate(shapes: Shapes, device: str) -> Case:
    x = _normal(device, shapes.rows, 2 * shapes.wide)
    truth = kernels.silu_mul.reference.silu_mul
    return Case(f"silu_mul, {shapes.rows} rows", lambda: silu_mul(x), lambda: truth(x.clone()), 1.5 * x.nbytes, 0)


def _rope(shapes: Shapes, device: str) -> Case:
    count = shapes.rows
    heads = _normal(device, count, shapes.num_heads + 2 * shapes.num_kv_heads, shapes.head_dim)
    angles = _normal(device, count, 1, shapes.head_dim // 2)
    cos, sin = torch.cat((angles, angles), dim=-1), torch.cat((-angles, angles), dim=-1)
    cache = _normal(device, -(-count // _BLOCK), _BLOCK, 2 * shapes.num_kv_heads, shapes.head_dim)
    at = torch.arange(count, dtype=torch.int32, device=device)

    def run(rotate: Callable[..., None]) -> Tensor:
        own, stored = heads.clone(), cache.clone()
        rotate(own, stored, cos, sin, at, at)
        return torch.cat((own[:, : shapes.num_heads].flatten(), stored.flatten()))

    truth = kernels.rope_and_store.reference.rope_and_store
    # Includes the copies that keep the case repeatable.
    num_bytes = 4 * heads.nbytes + 2 * cache.nbytes
    return Case(f"rope_and_store, {count} rows", lambda: run(rope_and_store), lambda: run(truth), num_bytes, 0)


def _sample(shapes: Shapes, device: str) -> Case:
    """Sampling at temperature 1 with top_p 0.9, without penalties."""
    n, vocab = shapes.rows // 4, shapes.vocab
    logits = 3 * _normal(device, n, vocab)

    def row(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((n,), value, dtype=dtype, device=device)

    parameters = StepParameters(
        temperature=row(1),
        top_k=row(0, torch.int32),
        top_p=row(0.9),
        min_p=row(0),
        uniform=torch.rand(n, dtype=torch.float64, device=device),
        presence=row(0),
        frequency=row(0),
        repetition=row(1),
        slots=row(-1, torch.int32),
        counts=torch.zeros((1, vocab), dtype=torch.int32, device=device),
        bias_starts=row(0, torch.int32),
        bias_ends=row(0, torch.int32),
        bias_ids=torch.zeros(1, dtype=torch.int32, device=device),
        bias_values=torch.zeros(1, device=device),
        masks=row(-1, torch.int32),
        allowed=torch.zeros((1, -(-vocab // 32)), dtype=torch.int32, device=device),
    )
    truth = kernels.sampling.reference.choose
    return Case(
        f"sampling, {n} rows", lambda: choose(logits, parameters), lambda: truth(logits, parameters), logits.nbytes, 0
    )


def _cache(shapes: Shapes, device: str, batch: int, length: int) -> tuple[Tensor, Tensor]:
    count = -(-length // _BLOCK)
    cache = _normal(device, batch * count, _BLOCK, 2 * shapes.num_kv_heads, shapes.head_dim)
    blocks = torch.randperm(batch * count, device=device).view(batch, count).int()
    return cache, blocks


def _decode(shapes: Shapes, device: str, batch: int, length: int) -> Case:
    cache, blocks = _cache(shapes, device, batch, length)
    q = _normal(device, batch, shapes.num_heads, shapes.head_dim)
    plan = plan_decode([length] * batch, num_programs=num_programs(shapes.num_kv_heads))
    items, programs, parts = (torch.from_numpy(each).to(device) for each in (plan.items, plan.programs, plan.parts))
    lens = torch.full((batch,), length, dtype=torch.int32, device=device)
    tables = DecodeTables(lens, blocks, items, programs, parts, len(plan.items), None)
    scale, truth = shapes.head_dim**-0.5, kernels.paged_decode.reference.paged_decode
    return Case(
        f"paged_decode, {batch} of {length}",
        lambda: paged_decode(q, cache, tables, scale=scale),
        lambda: truth(q, cache, blocks, lens, scale=scale, window=None),
        cache.nbytes,
        4 * batch * length * shapes.num_heads * shapes.head_dim,
    )


def _prefill(shapes: Shapes, device: str, length: int) -> Case:
    cache, blocks = _cache(shapes, device, 1, length)
    q = _normal(device, length, shapes.num_heads, shapes.head_dim)
    group, rows = shapes.num_heads // shapes.num_kv_heads, tile_rows(q.element_size())
    items = torch.from_numpy(plan_prefill([length], [length], group=group, rows=rows)).to(device)
    tables = PrefillTables([length], [length], blocks, items, None)
    scale, truth = shapes.head_dim**-0.5, kernels.paged_prefill.reference.paged_prefill
    return Case(
        f"paged_prefill, {length}",
        lambda: paged_prefill(q, cache, tables, scale=scale),
        lambda: truth(q, cache, blocks, [length], [length], scale=scale, window=None),
        cache.nbytes + 2 * q.nbytes,
        2 * length**2 * shapes.num_heads * shapes.head_dim,
        _fa3(shapes, device, length),
    )


def _fa3(shapes: Shapes, device: str, length: int) -> Callable[[], object] | None:
    """FlashAttention 3 on dense keys, from the package fa3-fwd; None if that is not installed."""
    if device != "cuda" or importlib.util.find_spec("fa3_fwd_interface") is None:
        return None
    attend = importlib.import_module("fa3_fwd_interface").flash_attn_func
    q = _normal(device, 1, length, shapes.num_heads, shapes.head_dim)
    k, v = (_normal(device, 1, length, shapes.num_kv_heads, shapes.head_dim) for _ in range(2))
    return lambda: attend(q, k, v, causal=True)


def _lora(shapes: Shapes, device: str, batch: int, count: int, rank: int) -> Case:
    """LoRA on the fused projection of q, k and v."""
    sizes = (shapes.num_heads * shapes.head_dim, *[shapes.num_kv_heads * shapes.head_dim] * 2)
    each = -(-rank // _BLOCK)
    pages = empty_pages(count * each, in_size=shapes.hidden, slice_sizes=sizes, dtype=_DTYPE, device=device)
    pages.a.normal_(std=shapes.hidden**-0.5)
    pages.b.normal_()
    pages.ranks.copy_(torch.tensor([min(16, rank - 16 * (i % each)) for i in range(count * each)])[:, None])
    slot_pages = [list(range(i * each, (i + 1) * each)) for i in range(count)]
    plan = plan_lora([i % count for i in range(batch)], [1] * batch, slot_pages, max_run=GPU_RUN)
    assert plan is not None
    tables, x, y = put_plan(plan, device), _normal(device, batch, shapes.hidden), _normal(device, batch, sum(sizes))

    def run() -> Tensor:
        out = y.clone()
        add_lora(out, x, pages, tables)
        return out

    def truth() -> Tensor:
        out = y.clone()
        kernels.lora.reference.add_lora(out, x, pages, plan)
        return out

    num_bytes = count * rank * (len(sizes) * shapes.hidden + sum(sizes)) * x.element_size()
    return Case(f"lora, {batch} tokens, {count} adapters of rank {rank}", run, truth, num_bytes, 0)
