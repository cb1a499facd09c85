"""Each of the GPU's operations against torch's, once at start, in the model's own shapes."""

from collections.abc import Callable

import torch
from torch import Tensor

import kernels.paged_decode.reference
import kernels.paged_prefill.reference
import kernels.rms_norm.reference
import kernels.rope_and_store.reference
import kernels.silu_mul.reference
from kernels import gpu
from kernels.paged_decode import DecodeTables, num_programs, paged_decode, plan_decode
from kernels.paged_prefill import PrefillTables, paged_prefill, plan_prefill, tile_rows
from kernels.rms_norm import rms_norm
from kernels.rope_and_store import rope_and_store
from kernels.silu_mul import silu_mul
from worker.model.config import ModelConfig

_LENGTH = 70
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def check_kernels(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Leave operations whose kernel fails, or computes something else than torch, to torch; see `gpu.refuse`."""
    case = _Case(config, dtype, device)
    for operation, pair in case.pairs().items():
        try:
            ours, theirs = (compute() for compute in pair)
            error = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        except Exception as failure:
            # A compiler that is too old, too little memory, an illegal instruction: whatever it is, torch still works.
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
        """Operation -> by its kernel, by torch."""
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
        }

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
