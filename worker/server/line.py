"""Who waits for a first token, so that a client can be told its place."""

from dataclasses import dataclass, field


@dataclass
class Line:
    """Places by class, then by arrival; fairness between tenants may let somebody pass, so a place is an estimate."""

    _waiting: dict[str, tuple[int, int]] = field(default_factory=dict)
    _num_seen: int = 0

    def enter(self, request_id: str, priority: int) -> None:
        self._num_seen += 1
        self._waiting[request_id] = (priority, self._num_seen)

    def leave(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)

    def position(self, request_id: str, *, num_waiting: int) -> int:
        """1 is next; 0 means already being computed. num_waiting: the engine's count."""
        own = self._waiting[request_id]
        num_before_or_at = sum(place <= own for place in self._waiting.values())
        num_started = len(self._waiting) - num_waiting
        return max(num_before_or_at - max(num_started, 0), 0)
