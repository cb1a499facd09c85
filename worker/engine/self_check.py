"""Checks each GPU operation against torch's, once at start, in the model's own shapes."""

from collections.abc import Callable

import torch
from torch import Tensor

import kernels.lora
import kernels.lora.reference
import kernels.paged_decode.reference
import kernels.paged_prefill.reference
import kernels.rms_norm.reference
import kernels.rope_and_store.reference
import kernels.sampling.reference
import kernels.silu_mul.reference
from kernels import gpu
from kernels.lora import LoraPages, LoraTables, empty_pages, plan_lora
from kernels.lora.tables import GPU_RUN, put_plan
from kernels.paged_decode import DecodeTables, num_programs, paged_decode, plan_decode
from kernels.paged_prefill import PrefillTables, paged_prefill, plan_prefill, tile_rows
from kernels.rms_norm import rms_norm
from kernels.rope_and_store import rope_and_store
from kernels.sampling.step import StepParameters, choose
from kernels.silu_mul import silu_mul
from worker.model.config import ModelConfig

_LENGTH = 70
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def check_kernels(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Leave an operation to torch if its kernel fails or computes something else than torch; see `gpu.refuse`."""
    case = _Case(config, dtype, device)
    for operation, pair in case.pairs().items():
        try:
            ours, theirs = (compute() for compute in pair)
            error = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        except Exception as failure:
            # Whatever the cause (an old compiler, too little memory, an illegal instruction), torch still works.
            gpu.refuse(operation, f"{type(failure).__name__}: {' '.join(str(failure).split())[:200]}")
            continue
        if not error <= _TOLERANCE[dtype]:
            gpu.refuse(operation, f"its result differs from torch's by {error:.1e}")


class _Case:
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        random = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=random).to(device, dtype)

        heads = config.num_heads + 2 * config.num_kv_heads
        self._rows, self._weight = normal(4, config.hidden_size), normal(config.hidden_size)
        self._gate_up = normal(4, 2 * config.intermediate_size)
        self._heads = normal(_LENGTH, heads, config.head_dim)
        angles = normal(_LENGTH, 1, config.head_dim // 2)
        self._tables = torch.cat((angles, angles), dim=-1), torch.cat((-angles, angles), dim=-1)
        self._cache = normal(8, 16, 2 * config.num_kv_heads, config.head_dim)
        self._blocks = torch.tensor([[6, 2, 4, 1, 7]], dtype=torch.int32, device=device)
        self._device = device

    def pairs(self) -> dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]]:
        """Operation -> its result by the kernel, its result by torch."""
        rows, weight, gate_up = self._rows, self._weight, self._gate_up
        return {
            "rms_norm": (
                lambda: rms_norm(rows, weight, eps=1e-5),
                lambda: kernels.rms_norm.reference.rms_norm(rows, weight, eps=1e-5),
            ),
            "silu_mul": (lambda: silu_mul(gate_up), lambda: kernels.silu_mul.reference.silu_mul(gate_up.clone())),
            "rope_and_store": (
                lambda: self._stored(rope_and_store),
                lambda: self._stored(kernels.rope_and_store.reference.rope_and_store),
            ),
            "paged_decode": (self._decoded, self._decoded_by_torch),
            "paged_prefill": (self._prefilled, self._prefilled_by_torch),
            "lora": (lambda: self._adapted(kernels.lora.add_lora), lambda: self._adapted(self._adapt_by_torch)),
            "sampling": (lambda: self._chosen(choose), lambda: self._chosen(kernels.sampling.reference.choose)),
        }

    def _adapted(self, adapt: Callable[..., None]) -> Tensor:
        """An adapter of rank 20, in two pages, on one projection."""
        hidden = self._config.hidden_size
        pages = empty_pages(2, in_size=hidden, slice_sizes=[hidden], dtype=self._rows.dtype, device=self._device)
        # Of the second page's 16 ranks, only 4 count.
        pages.a.copy_(self._rows[0].expand_as(pages.a) / hidden)
        pages.b.copy_(self._rows[1].expand_as(pages.b))
        pages.ranks.copy_(torch.tensor([[16], [4]]))
        plan = plan_lora([0, -1, 0, 0], [1] * 4, [[1, 0]], max_run=GPU_RUN)
        assert plan is not None
        y = self._rows.clone()
        adapt(y, self._rows, pages, put_plan(plan, self._device))
        return y

    def _adapt_by_torch(self, y: Tensor, x: Tensor, pages: LoraPages, tables: LoraTables) -> None:
        assert tables.plan is not None
        kernels.lora.reference.add_lora(y, x, pages, tables.plan)

    def _chosen(self, choose: Callable[..., Tensor]) -> Tensor:
        n, vocab = 4, 5000
        logits = torch.randn((n, vocab), generator=torch.Generator().manual_seed(1)).to(self._device)

        def row(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=self._device)

        nothing = torch.zeros(n, device=self._device)
        parameters = StepParameters(
            temperature=row(0, 1, 1, 0.5),
            top_k=row(0, 0, 40, 0, dtype=torch.int32),
            top_p=row(1, 1, 1, 0.9),
            min_p=row(0, 0, 0, 0.01),
            uniform=row(0.5, 0.3, 0.6, 0.9, dtype=torch.float64),
            presence=nothing,
            frequency=nothing,
            repetition=nothing + 1,
            slots=row(-1, -1, -1, -1, dtype=torch.int32),
            counts=torch.zeros((1, vocab), dtype=torch.int32, device=self._device),
            bias_starts=row(0, 0, 0, 0, dtype=torch.int32),
            bias_ends=row(0, 0, 0, 0, dtype=torch.int32),
            bias_ids=torch.zeros(1, dtype=torch.int32, device=self._device),
            bias_values=torch.zeros(1, device=self._device),
            masks=row(-1, -1, -1, -1, dtype=torch.int32),
            allowed=torch.full((n, -(-vocab // 32)), -1, dtype=torch.int32, device=self._device),
        )
        return choose(logits, parameters)

    def _stored(self, rotate: Callable[..., None]) -> Tensor:
        heads, cache = self._heads.clone(), self._cache.clone()
        at = torch.arange(_LENGTH, dtype=torch.int32, device=self._device)
        rotate(heads, cache, *self._tables, at, at + 16)
        return torch.cat((heads[:, : self._config.num_heads].flatten(), cache.flatten()))

    def _decode_tables(self) -> DecodeTables:
        programs = num_programs(self._config.num_kv_heads)
        plan = plan_decode([_LENGTH], num_programs=programs)
        items, starts, parts = (torch.from_numpy(t).to(self._device) for t in (plan.items, plan.programs, plan.parts))
        lens = torch.tensor([_LENGTH], dtype=torch.int32, device=self._device)
        return DecodeTables(lens, self._blocks, items, starts, parts, len(plan.items), None)

    def _decoded(self) -> Tensor:
        queries = self._heads[:1, : self._config.num_heads]
        return paged_decode(queries, self._cache, self._decode_tables(), scale=self._config.head_dim**-0.5)

    def _decoded_by_torch(self) -> Tensor:
        queries, scale = self._heads[:1, : self._config.num_heads], self._config.head_dim**-0.5
        decode = kernels.paged_decode.reference.paged_decode
        lens = self._decode_tables().context_lens
        return decode(queries, self._cache, self._blocks, lens, scale=scale, window=None)

    def _prefilled(self) -> Tensor:
        config = self._config
        group, rows = config.num_heads // config.num_kv_heads, tile_rows(self._cache.element_size())
        items = torch.from_numpy(plan_prefill([_LENGTH], [_LENGTH], group=group, rows=rows)).to(self._device)
        tables = PrefillTables([_LENGTH], [_LENGTH], self._blocks, items, None)
        return paged_prefill(self._heads[:, : config.num_heads], self._cache, tables, scale=config.head_dim**-0.5)

    def _prefilled_by_torch(self) -> Tensor:
        queries, scale = self._heads[:, : self._config.num_heads], self._config.head_dim**-0.5
        prefill = kernels.paged_prefill.reference.paged_prefill
        return prefill(queries, self._cache, self._blocks, [_LENGTH], [_LENGTH], scale=scale, window=None)
