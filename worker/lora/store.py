"""The resident adapters: which slot and which pages each has, and how many requests use it."""

from dataclasses import dataclass

from worker.lora.adapter import Adapter
from worker.lora.pages import AdapterPages, pages_needed


class NoRoom(Exception):
    """All slots or pages are taken."""


@dataclass(slots=True)
class _Resident:
    name: str
    digest: str
    page_ids: list[int]
    num_users: int = 0
    is_leaving: bool = False


class LoraStore:
    """Slots of resident adapters. Not thread-safe: only the engine's thread changes it.

    An unloaded adapter takes no new requests at once; its slot is freed when its last running request is done.
    """

    def __init__(self, pages: AdapterPages, *, num_slots: int) -> None:
        self._pages = pages
        self._free_pages = list(range(pages.num_pages))
        self._slots: list[_Resident | None] = [None] * num_slots
        self.slot_pages: list[list[int]] = [[] for _ in range(num_slots)]
        """The pages of the adapter in each slot."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(r.name for r in self._slots if r is not None and not r.is_leaving))

    def add(self, name: str, adapter: Adapter) -> None:
        """Raises NoRoom."""
        assert name not in self.names
        num_pages = pages_needed(adapter.rank)
        if None not in self._slots or num_pages > len(self._free_pages):
            raise NoRoom(f"{name!r} needs a slot and {num_pages} pages of 16 ranks, {len(self._free_pages)} are free")
        slot = self._slots.index(None)
        page_ids = [self._free_pages.pop() for _ in range(num_pages)]
        self._pages.write(adapter, page_ids)
        self._slots[slot], self.slot_pages[slot] = _Resident(name, adapter.digest, page_ids), page_ids

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
        return slot, resident.digest

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
            self._free_pages += resident.page_ids
            self._slots[slot], self.slot_pages[slot] = None, []
