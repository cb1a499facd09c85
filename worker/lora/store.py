"""The resident adapters, stacked by slot so that one batch can use all of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.lora import LoraStack, stack_adapters
from worker.lora.adapter import Adapter
from worker.model.config import ModelConfig
from worker.model.layers import LoraLayer
from worker.model.llama import FUSED, projection_shapes


@dataclass(slots=True)
class _Resident:
    name: str
    adapter: Adapter
    num_users: int = 0
    is_leaving: bool = False


class LoraStore:
    """Slots of resident adapters. Not thread-safe: only the engine's thread changes it.

    An unloaded adapter takes no new requests at once; its slot is freed when its last running request is done.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, *, is_deterministic: bool = False) -> None:
        self._is_deterministic = is_deterministic
        self._config = config
        self._dtype = dtype
        self._slots: list[_Resident | None] = []
        self.layers: list[LoraLayer] = [{} for _ in range(config.num_layers)]

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(r.name for r in self._slots if r is not None and not r.is_leaving))

    def add(self, name: str, adapter: Adapter) -> None:
        assert name not in self.names
        resident = _Resident(name, adapter)
        if None in self._slots:
            self._slots[self._slots.index(None)] = resident
        else:
            self._slots.append(resident)
        self._stack()

    def remove(self, name: str) -> None:
        slot = self._find(name)
        resident = self._slots[slot]
        assert resident is not None
        resident.is_leaving = True
        self._free_if_unused(slot)

    def acquire(self, name: str) -> tuple[int, str]:
        """Slot and digest, pinned until `release`. Raises KeyError when no such adapter is resident."""
        slot = self._find(name)
        resident = self._slots[slot]
        assert resident is not None
        resident.num_users += 1
        return slot, resident.adapter.digest

    def release(self, slot: int) -> None:
        resident = self._slots[slot]
        assert resident is not None and resident.num_users > 0
        resident.num_users -= 1
        self._free_if_unused(slot)

    def _find(self, name: str) -> int:
        for slot, resident in enumerate(self._slots):
            if resident is not None and resident.name == name and not resident.is_leaving:
                return slot
        raise KeyError(name)

    def _free_if_unused(self, slot: int) -> None:
        resident = self._slots[slot]
        if resident is not None and resident.is_leaving and resident.num_users == 0:
            self._slots[slot] = None
            while self._slots and self._slots[-1] is None:
                self._slots.pop()
            self._stack()

    def _stack(self) -> None:
        """Rebuild the stacks: as many slots and as high a rank as are resident."""
        rank = max((r.adapter.rank for r in self._slots if r is not None), default=0)
        self.layers = [self._stack_layer(i, rank) for i in range(self._config.num_layers)]

    def _stack_layer(self, layer: int, rank: int) -> LoraLayer:
        stacks: LoraLayer = {}
        for fused, parts in FUSED.items():
            if any(r and (layer, part) in r.adapter.weights for r in self._slots for part in parts):
                stacks[fused] = self._stack_projection(layer, parts, rank)
        return stacks

    def _stack_projection(self, layer: int, parts: tuple[str, ...], rank: int) -> LoraStack:
        """The parts of a fused projection keep rows of their own: part p has ranks p * rank .. (p + 1) * rank."""
        pairs = [self._pair(layer, parts, resident, rank) for resident in self._slots]
        a, b = (torch.stack(each) for each in zip(*pairs, strict=True))
        if not self._is_deterministic:
            return stack_adapters(a, b)
        per_slot = [self._pair(layer, parts, each, each.adapter.rank if each else 1) for each in self._slots]
        return stack_adapters(a, b, per_slot=per_slot)

    def _pair(self, layer: int, parts: tuple[str, ...], resident: _Resident | None, rank: int) -> tuple[Tensor, Tensor]:
        """One slot's a and b, at a rank that is at least its own."""
        shapes = projection_shapes(self._config)
        in_size, out_size = shapes[parts[0]][1], sum(shapes[part][0] for part in parts)
        a = torch.zeros(len(parts) * rank, in_size, dtype=self._dtype)
        b = torch.zeros(len(parts) * rank, out_size, dtype=self._dtype)
        column = 0
        for p, part in enumerate(parts):
            width = shapes[part][0]
            weights = resident.adapter.weights.get((layer, part)) if resident else None
            if weights is not None:
                rows = slice(p * rank, p * rank + len(weights[0]))
                a[rows], b[rows, column : column + width] = weights
            column += width
        return a, b
