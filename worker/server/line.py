"""Who waits for a first token, so that a client can be told its place."""

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class Line:
    """Places by class, then by arrival; fairness between tenants may let somebody pass, so a place is an estimate."""

    _waiting: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    _num_seen: int = 0

    def enter(self, who: Hashable, priority: int) -> None:
        self._num_seen += 1
        self._waiting[who] = (priority, self._num_seen)

    def leave(self, who: Hashable) -> None:
        self._waiting.pop(who, None)

    def position(self, who: Hashable, *, num_waiting: int) -> int:
        """1 is next; 0 means already being computed. num_waiting: the engine's count."""
        own = self._waiting[who]
        num_before_or_at = sum(place <= own for place in self._waiting.values())
        num_started = len(self._waiting) - num_waiting
        return max(num_before_or_at - max(num_started, 0), 0)
