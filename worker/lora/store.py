"""The adapters of a replica by name, and their way into the slots; only the engine's thread changes them."""

from collections.abc import Callable
from pathlib import Path

from worker.lora.adapter import Adapter, AdapterError
from worker.lora.loading import AdapterLoader
from worker.lora.pages import AdapterPages, pages_needed
from worker.lora.residency import Residency, Version


class LoraStore:
    """names, resident_names: any thread may read them."""

    def __init__(
        self, pages: AdapterPages, read: Callable[[Path], Adapter], *, num_slots: int, max_host_bytes: int
    ) -> None:
        self.loader = AdapterLoader(pages, read, max_host_bytes=max_host_bytes)
        self.residency = Residency(num_slots=num_slots, num_pages=pages.num_pages)
        self._versions: dict[str, Version] = {}
        self.names: tuple[str, ...] = ()
        self.resident_names: tuple[str, ...] = ()

    @property
    def slot_pages(self) -> list[list[int]]:
        return self.residency.slot_pages

    def add(self, name: str, adapter: Adapter, folder: Path) -> tuple[Version, Version | None]:
        """Returns the new version, and the one that it replaces, which takes no new requests. Raises AdapterError if
        the adapter can never fit, and then changes nothing."""
        num_pages = pages_needed(adapter.rank)
        if num_pages > self.residency.num_pages:
            raise AdapterError(
                folder, f"rank {adapter.rank} needs {num_pages} pages of 16, this worker has {self.residency.num_pages}"
            )
        self.loader.keep(adapter)
        replaced = self._versions.get(name)
        if replaced is not None:
            replaced.is_leaving = True
        version = self._versions[name] = Version(name, adapter.digest, folder, num_pages)
        self.note_changes()
        return version, replaced

    def remove(self, name: str) -> Version:
        """Raises KeyError."""
        version = self._versions.pop(name)
        version.is_leaving = True
        self.note_changes()
        return version

    def drop(self, version: Version) -> None:
        """Drops an unused version that left from host memory, unless another name has the same content."""
        if all(other.digest != version.digest for other in self._versions.values()):
            self.loader.drop(version.digest)

    def find(self, name: str) -> Version:
        """Raises KeyError."""
        return self._versions[name]

    def fill(self) -> None:
        """Loads the first adapters into the slots, as many as there is room for, before the first step. Raises
        AdapterError."""
        for version in self._versions.values():
            if self.residency.has_free_room(version.num_pages):
                self.residency.want(version)
                self.residency.advance()
                self.loader.load_now(version)
                self.residency.finish(version)
        self.note_changes()

    def note_changes(self) -> None:
        self.names = tuple(sorted(self._versions))
        residents = {version.name for version in self.residency.residents if not version.is_leaving}
        self.resident_names = tuple(sorted(residents))
