"""Answers to one prompt: the first computes the prompt, the others wait and then find its blocks in the cache. Pure."""

from worker.engine.sequence import Sequence


class Siblings:
    """Sequences that wait for another one, their leader, which is live as long as they wait."""

    def __init__(self) -> None:
        self._by_leader: dict[str, list[Sequence]] = {}
        self._leaders: dict[str, str] = {}

    def hold(self, leader: Sequence, siblings: list[Sequence]) -> None:
        self._by_leader[leader.stream_id] = siblings
        for sibling in siblings:
            self._leaders[sibling.stream_id] = leader.stream_id

    def release(self, leader: Sequence) -> list[Sequence]:
        """The sequences that waited for the leader, in their order."""
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
        """Remove and return a waiting sequence that is given up; None if it does not wait here."""
        leader_id = self._leaders.pop(stream_id, None)
        if leader_id is None:
            return None
        siblings = self._by_leader[leader_id]
        [taken] = [each for each in siblings if each.stream_id == stream_id]
        siblings.remove(taken)
        return taken
