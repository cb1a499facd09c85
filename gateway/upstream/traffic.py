"""This process's own requests at each member, now and at the time of the member's last report."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from protocol.load import LoadReport
from router.fleet import Member
from router.in_flight import InFlight


@dataclass(slots=True)
class _Sight:
    in_flight: InFlight
    load: LoadReport | None = None
    seen_at_s: float = 0.0
    own_unanswered: int = 0
    own_streaming: int = 0
    told: tuple[float, int, int] | None = None
    """When an answer's header reported a load, and our own unanswered and streaming requests at that time."""

    def note(self, load: LoadReport | None, now_s: float) -> None:
        self.load = load
        self.seen_at_s, self.own_unanswered, self.own_streaming = self.told or self._now(now_s)
        self.told = None

    def note_told(self, now_s: float) -> None:
        self.told = self._now(now_s)

    def _now(self, now_s: float) -> tuple[float, int, int]:
        return now_s, self.in_flight.num_unanswered, self.in_flight.num_streaming


class Traffic:
    """Counts by worker id, kept when the fleet is rebuilt."""

    def __init__(self) -> None:
        self._sights: dict[str, _Sight] = {}

    def attach(self, members: Iterable[tuple[str, Member]], now_s: float) -> list[tuple[str, Member]]:
        """The same (pool, member) pairs with our own counts. now_s: on the process's monotonic clock."""
        attached = [(pool, self._attach(member, now_s)) for pool, member in members]
        present = {member.worker_id for _, member in attached}
        for worker_id in [each for each in self._sights if each not in present]:
            # The member is gone. Requests still under way there hold the InFlight object, and end on it.
            del self._sights[worker_id]
        return attached

    def note_told(self, worker_id: str, now_s: float) -> None:
        """An answer's header reported a load, which the next rebuilt fleet will contain."""
        sight = self._sights.get(worker_id)
        if sight is not None:
            sight.note_told(now_s)

    def _attach(self, member: Member, now_s: float) -> Member:
        sight = self._sights.get(member.worker_id)
        if sight is None:
            sight = self._sights[member.worker_id] = _Sight(InFlight())
        if member.load is not sight.load:
            sight.note(member.load, now_s)
        return msgspec.structs.replace(
            member,
            age_s=now_s - sight.seen_at_s if member.load is not None else 0.0,
            recent_ttft_ms=sight.in_flight.recent_ttft_ms(now_s),
            in_flight=sight.in_flight,
            own_unanswered=sight.own_unanswered,
            own_streaming=sight.own_streaming,
        )
