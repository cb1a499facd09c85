"""Answers to one prompt: the first computes it, the others wait for that and find its blocks in the cache. No torch."""

from worker.engine.sequence import Sequence


class Siblings:
    """Sequences that wait for another, the leader, which is live as long as they are here."""

    def __init__(self) -> None:
        self._by_leader: dict[str, list[Sequence]] = {}
        self._leaders: dict[str, str] = {}

    def hold(self, leader: Sequence, siblings: list[Sequence]) -> None:
        self._by_leader[leader.stream_id] = siblings
        for sibling in siblings:
            self._leaders[sibling.stream_id] = leader.stream_id

    def release(self, leader: Sequence) -> list[Sequence]:
        """Those that waited for it, in their order; none if it led nobody."""
        released = self._by_leader.pop(leader.stream_id, [])
        for sibling in released:
            del self._leaders[sibling.stream_id]
        return released

    def release_all(self) -> list[Sequence]:
        released = [sibling for siblings in self._by_leader.values() for sibling in siblings]
        self._by_leader.clear()
        self._leaders.clear()
        return released

    def take(self, stream_id: str) -> Sequence | None:
        """One that waits, to be given up; None if it does not wait here."""
        leader_id = self._leaders.pop(stream_id, None)
        if leader_id is None:
            return None
        siblings = self._by_leader[leader_id]
        [taken] = [each for each in siblings if each.stream_id == stream_id]
        siblings.remove(taken)
        return taken
