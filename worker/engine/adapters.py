"""Requests whose adapter is not in a slot yet: they wait here and block no others."""

from collections.abc import Callable
from functools import partial

from worker.engine.errors import AdapterUnavailable, EngineError
from worker.engine.sequence import Sequence
from worker.lora.residency import Version
from worker.lora.store import LoraStore

Group = list[Sequence]
"""Requests with one prompt and one adapter, which begin together."""


class AdapterQueue:
    """Belongs to the engine's thread.

    post: runs a function in the engine's thread; callable from any thread. begin: starts a group whose adapter is in
    a slot. fail: ends a request that has not begun.
    """

    def __init__(
        self,
        store: LoraStore,
        *,
        post: Callable[[Callable[[], None]], None],
        begin: Callable[[Group], None],
        fail: Callable[[Sequence, EngineError], None],
    ) -> None:
        self._store = store
        self._residency = store.residency
        self._post = post
        self._begin = begin
        self._fail = fail
        self._groups: dict[Version, list[Group]] = {}

    def __bool__(self) -> bool:
        """Whether any request waits."""
        return bool(self._groups)

    def waiting(self) -> list[Sequence]:
        return [sequence for groups in list(self._groups.values()) for group in list(groups) for sequence in group]

    def submit(self, group: Group) -> None:
        """All of the group's sequences have the same version."""
        version = group[0].version
        assert version is not None
        if self._residency.pin(version):
            self._admit(version, group, num_pinned=1)
            return
        self._groups.setdefault(version, []).append(group)
        self._store.loader.prefetch(version)
        self._residency.want(version)
        self._advance()

    def release(self, sequence: Sequence) -> None:
        """Unpins the adapter of a request that had begun and is over."""
        if sequence.version is not None and sequence.adapter_slot >= 0:
            sequence.adapter_slot = -1
            self._residency.unpin(sequence.version)
            self._leave(sequence.version)
            self._advance()

    def take(self, stream_id: str) -> Sequence | None:
        """Remove and return a waiting request that is given up; None if it does not wait here."""
        for sequence in self.waiting():
            if sequence.stream_id == stream_id:
                self._remove(sequence)
                return sequence
        return None

    def take_expired(self, now: float) -> list[Sequence]:
        expired = [
            each for each in self.waiting() if each.request.deadline_at is not None and each.request.deadline_at <= now
        ]
        for sequence in expired:
            self._remove(sequence)
        return expired

    def take_all(self) -> list[Sequence]:
        taken = self.waiting()
        for sequence in taken:
            self._remove(sequence)
        return taken

    def leave(self, version: Version) -> None:
        """Unloaded or replaced, the version gives up its room once no request runs with it or waits for it."""
        self._leave(version)
        self._advance()

    def warm(self, version: Version) -> None:
        """Load the version if that displaces no other."""
        if version.state == "away" and self._residency.has_free_room(version.num_pages):
            self._residency.want(version)
            self._advance()

    def _admit(self, version: Version, group: Group, *, num_pinned: int = 0) -> None:
        for _ in range(len(group) - num_pinned):
            is_pinned = self._residency.pin(version, has_turn=True)
            assert is_pinned
        for sequence in group:
            sequence.adapter_slot = version.slot
        self._begin(group)

    def _admit_waiting(self, version: Version) -> None:
        for group in self._groups.pop(version, []):
            self._admit(version, group)

    def _advance(self) -> None:
        to_load, opened = self._residency.advance()
        for version in opened:
            self._admit_waiting(version)
        for version in to_load:
            self._store.loader.load(version, partial(self._post_end, version))
        if to_load:
            self._store.note_changes()

    def _post_end(self, version: Version, error: Exception | None) -> None:
        self._post(partial(self._end_load, version, error))

    def _end_load(self, version: Version, error: Exception | None) -> None:
        if error is None:
            self._residency.finish(version)
            self._admit_waiting(version)
            self._leave(version)
        else:
            self._residency.fail(version)
            for group in self._groups.pop(version, []):
                for sequence in group:
                    self._fail(sequence, AdapterUnavailable(version.name, str(error)))
        self._store.note_changes()
        self._advance()

    def _remove(self, sequence: Sequence) -> None:
        version = sequence.version
        assert version is not None
        for group in self._groups[version]:
            if sequence in group:
                group.remove(sequence)
        self._groups[version] = [group for group in self._groups[version] if group]
        if not self._groups[version]:
            del self._groups[version]
            self._residency.unwant(version)
            self._leave(version)
            self._advance()

    def _leave(self, version: Version) -> None:
        is_unused = version.is_leaving and not version.num_pins and version not in self._groups
        if is_unused and version.state == "resident":
            self._store.loader.release(version.page_ids)
            self._residency.evict(version)
            self._store.note_changes()
        if is_unused and version.state == "away":
            self._store.drop(version)
