"""Which adapters are in the slots, and whose turn it is when there are more adapters than slots. Pure.

An adapter that requests wait for queues for room: free slots and pages, and those of idle adapters, least recently used
first. If that is not enough, the adapters that entered their slots first are closed: the requests that run with them
finish, and new ones queue with the others. So every adapter gets its turn within as many rotations as the queue has
slots' worth of adapters before it.
"""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(eq=False, slots=True)
class Version:
    """One version of a named adapter's content, which another version may replace under the same name.

    num_pins: requests that may read its pages. is_closed: it takes no new requests for now. is_queued: it waits for
    room or, if closed, for its next turn. is_leaving: it was unloaded or replaced; requests that have it finish.
    """

    name: str
    digest: str
    folder: Path
    num_pages: int
    state: Literal["away", "loading", "resident"] = "away"
    slot: int = -1
    page_ids: list[int] = field(default_factory=list)
    num_pins: int = 0
    is_closed: bool = False
    is_queued: bool = False
    is_leaving: bool = False


class Residency:
    """slot_pages: the pages of the adapter in each slot. Not thread-safe."""

    def __init__(self, *, num_slots: int, num_pages: int) -> None:
        self.num_slots, self.num_pages = num_slots, num_pages
        self.slot_pages: list[list[int]] = [[] for _ in range(num_slots)]
        self._free_slots = list(range(num_slots))[::-1]
        self._free_pages = list(range(num_pages))[::-1]
        self._queue: deque[Version] = deque()
        # In the order of their last use, and in the order of their arrival.
        self._residents: dict[Version, None] = {}
        self._arrivals: dict[Version, None] = {}

    @property
    def residents(self) -> tuple[Version, ...]:
        return tuple(self._residents)

    def pin(self, version: Version, *, has_turn: bool = False) -> bool:
        """Pins the version until `unpin` and returns True, if a request may run with it at once. has_turn: the request
        waited for the version, which `advance` or `finish` has just made available."""
        if version.state != "resident" or (version.is_closed and not has_turn):
            return False
        version.num_pins += 1
        self._touch(version)
        return True

    def unpin(self, version: Version) -> None:
        assert version.num_pins > 0
        version.num_pins -= 1
        self._touch(version)

    def want(self, version: Version) -> None:
        """Queues a version that requests wait for, unless it is queued or being loaded already."""
        if version.state != "loading" and not version.is_queued:
            version.is_queued = True
            self._queue.append(version)

    def unwant(self, version: Version) -> None:
        """Takes a version out of the queue that no request waits for any more."""
        if version.is_queued:
            version.is_queued = False
            self._queue.remove(version)

    def advance(self) -> tuple[list[Version], list[Version]]:
        """Give room to the versions whose turn it is. Returns those to load into their `page_ids` now, and the closed
        ones whose waiting requests have their turn, to be pinned before the next call.

        A version whose load is finished must be pinned before the next call, too, since it is idle until then.
        """
        to_load: list[Version] = []
        opened: list[Version] = []
        while self._queue:
            version = self._queue[0]
            if version.state == "resident":
                version.is_closed = False
                del self._arrivals[version]
                self._arrivals[version] = None
                opened.append(version)
            elif self._make_room(version.num_pages, spared=opened):
                self._place(version)
                to_load.append(version)
            else:
                break
            self._queue.popleft()
            version.is_queued = False
        self._close_for_queue()
        return to_load, opened

    def finish(self, version: Version) -> None:
        """The version has been loaded."""
        assert version.state == "loading"
        version.state = "resident"
        self._residents[version] = self._arrivals[version] = None

    def fail(self, version: Version) -> None:
        """The version could not be loaded."""
        assert version.state == "loading"
        self._free(version)

    def evict(self, version: Version) -> None:
        assert version.state == "resident" and not version.num_pins
        del self._residents[version], self._arrivals[version]
        self._free(version)

    def has_free_room(self, num_pages: int) -> bool:
        """Whether num_pages and a slot are free without evicting or overtaking another adapter."""
        return bool(self._free_slots) and num_pages <= len(self._free_pages) and not self._queue

    def check(self) -> None:
        """Assert that every slot and page has one owner or is free."""
        owned = [page for pages in self.slot_pages for page in pages]
        assert sorted(owned + self._free_pages) == list(range(self.num_pages))
        assert all(version.num_pins == 0 for version in self._queue if version.state == "away")

    def _touch(self, version: Version) -> None:
        del self._residents[version]
        self._residents[version] = None

    def _make_room(self, num_pages: int, *, spared: list[Version]) -> bool:
        idle = [version for version in self._residents if not version.num_pins and version not in spared]
        if not self._free_slots and not idle:
            return False
        if len(self._free_pages) + sum(version.num_pages for version in idle) < num_pages:
            return False
        for version in idle:
            if self._free_slots and len(self._free_pages) >= num_pages:
                break
            self.evict(version)
        return True

    def _place(self, version: Version) -> None:
        version.state, version.slot = "loading", self._free_slots.pop()
        version.page_ids = [self._free_pages.pop() for _ in range(version.num_pages)]
        self.slot_pages[version.slot] = version.page_ids

    def _free(self, version: Version) -> None:
        self._free_slots.append(version.slot)
        self._free_pages += version.page_ids
        self.slot_pages[version.slot] = []
        version.state, version.slot, version.page_ids, version.is_closed = "away", -1, [], False

    def _close_for_queue(self) -> None:
        """Closes as many of the earliest arrivals as the next in the queue need; reopens all if the queue is empty."""
        if not self._queue:
            for version in self._residents:
                version.is_closed = False
            return
        waiting = [version for version in self._queue if version.state == "away"][: self.num_slots]
        slots = len(waiting) - len(self._free_slots)
        pages = sum(version.num_pages for version in waiting) - len(self._free_pages)
        for version in self._arrivals:
            if slots <= 0 and pages <= 0:
                break
            version.is_closed = True
            slots, pages = slots - 1, pages - version.num_pages
