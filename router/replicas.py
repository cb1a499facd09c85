"""A pool's replicas prepared for balancing: indexed once per picture, so that a decision examines only a few."""

import zlib
from collections.abc import Iterable
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from protocol.artifacts import ARTIFACT_PREFIX
from router.ring import homes

if TYPE_CHECKING:
    from router.fleet import Member

STALE_S = 1.5
"""Three heartbeats; an older report no longer shows the current load."""
_UNKNOWN_SLOTS = 64
"""Assumed number of concurrent requests of a server that does not report it."""
_MAX_SLOWNESS = 10.0


class Replica:
    """One usable member, with the part of its state that is fixed until the next picture."""

    __slots__ = ("hash", "is_stale", "is_tight", "member", "others_running", "others_waiting", "slots", "slowness")

    def __init__(self, member: "Member", *, typical_ttft_ms: float) -> None:
        self.member = member
        self.hash = zlib.crc32(member.worker_id.encode(errors="replace"))
        self.slots = _UNKNOWN_SLOTS
        self.others_waiting = self.others_running = 0
        self.is_tight = False
        self.is_stale = not 0 <= member.age_s <= STALE_S
        load = member.load
        if load is not None and is_sane(member):
            self.slots = max(1, load.max_num_seqs)
            # Our own requests are counted live. Those without a token may be among the report's waiting or running.
            early = max(0, member.own_unanswered - load.num_waiting)
            self.others_waiting = max(0, load.num_waiting - member.own_unanswered)
            self.others_running = max(0, load.num_running - member.own_streaming - early)
            self.is_tight = is_tight(member)
        self.slowness = _slowness(member, typical_ttft_ms)

    @property
    def is_taken(self) -> bool:
        """Whether the replica is on trial and already has its trial request."""
        return self.member.is_on_trial and self.member.in_flight.num_unanswered > 0

    def serves(self, adapter: str) -> bool:
        load = self.member.load
        return load is None or load.serves(adapter)

    def has_resident(self, adapter: str) -> bool:
        load = self.member.load
        return load is None or load.has_resident(adapter)

    @property
    def num_waiting(self) -> int:
        """Requests at the replica that have no token yet."""
        return self.others_waiting + self.member.in_flight.num_unanswered

    @property
    def num_running(self) -> int:
        return self.others_running + self.member.in_flight.num_streaming

    def waiting_turns(self) -> float:
        """How long a request would wait here, in turns: one turn is the time that a prompt ahead of it typically takes.

        Each prompt ahead costs a turn. A request without a free slot waits for an answer to end, which costs more.
        Running answers slow every step a little.
        """
        flight = self.member.in_flight
        waiting = self.others_waiting + flight.num_unanswered
        running = self.others_running + flight.num_streaming
        busy = (waiting + running) / self.slots
        turns = 1.0 + waiting + busy
        if busy >= 1.0:
            turns += FULL_TURNS * (busy - 1.0) + FULL_TURNS
        if self.is_tight:
            turns += FULL_TURNS
        return turns * self.slowness


FULL_TURNS = 8.0
"""A replica whose slots or KV blocks are all in use counts like one with this many more prompts waiting."""
TIGHT_SHARE = 0.05
"""A smaller share of free KV blocks counts as none: running answers will grow into them."""


def is_sane(member: "Member") -> bool:
    """Whether the member's report is plausible. If not, it is ignored, but the member is used while healthy."""
    load = member.load
    return load is not None and (
        load.num_waiting >= 0 and load.num_running >= 0 and load.max_num_seqs >= 0 and load.num_free_blocks >= 0
    )


def is_tight(member: "Member", share: float = TIGHT_SHARE) -> bool:
    load = member.load
    return load is not None and load.num_blocks > 0 and load.num_free_blocks < share * load.num_blocks


def _slowness(member: "Member", typical_ttft_ms: float) -> float:
    """How many times longer a turn takes here than elsewhere in the pool, including slow start."""
    weight = member.weight if 0.0 < member.weight <= 1.0 else 1.0
    ttft_ms = member.recent_ttft_ms
    if ttft_ms is None or not typical_ttft_ms > 0 or not ttft_ms > 2 * typical_ttft_ms:
        # Up to twice the typical time is within the effect of chance and queues; NaN counts as not measured.
        return 1.0 / weight
    return min(ttft_ms / typical_ttft_ms / 2, _MAX_SLOWNESS) / weight


class Replicas:
    """The usable members of a pool, and indexes over them."""

    def __init__(self, members: Iterable["Member"]) -> None:
        self._all = _distinct(members)
        self._is_usable = [_is_usable(member) for member in self._all]
        usable = [member for member, is_usable in zip(self._all, self._is_usable, strict=True) if is_usable]
        measured = [each.recent_ttft_ms for each in usable if each.recent_ttft_ms is not None]
        typical = median(measured) if measured else 0.0
        self._typical_ttft_ms = typical
        self._by_index = [
            Replica(member, typical_ttft_ms=typical) if is_usable else None
            for member, is_usable in zip(self._all, self._is_usable, strict=True)
        ]
        self.usable = [replica for replica in self._by_index if replica is not None]
        self.is_stale = 2 * sum(replica.is_stale for replica in self.usable) > len(self.usable)
        self._holders: dict[str, list[Replica]] = {}

    @cached_property
    def idlest(self) -> list[Replica]:
        """The least busy quarter of the usable replicas, computed once per picture."""
        by_turns = sorted(self.usable, key=Replica.waiting_turns)
        return by_turns[: max(1, len(by_turns) // 4)]

    def serving(self, adapter: str | None) -> list[Replica]:
        """Replicas that serve the adapter. A server without a load report does not report adapters: it is assumed to
        serve them all."""
        if adapter is None:
            return self.usable
        found = self._holders.get(adapter)
        if found is None:
            holds = {adapters: adapter in adapters for adapters in self._distinct_adapters}
            is_artifact = adapter.startswith(ARTIFACT_PREFIX)
            found = self._holders[adapter] = [
                replica
                for replica in self.usable
                if (load := replica.member.load) is None
                or holds[load.adapters]
                or (is_artifact and load.fetches_adapters)
            ]
        return found

    def residents(self, adapter: str) -> list[Replica]:
        """Replicas that have the adapter loaded, according to their reports."""
        return self._residents.get(adapter, [])

    def homes(self, key: int, num: int) -> list[Replica]:
        """The first `num` replicas of a key on the hash ring."""
        found = homes(self._worker_ids, key, num=num, is_usable=self._is_usable)
        return [replica for index in found if (replica := self._by_index[index]) is not None]

    @cached_property
    def _worker_ids(self) -> tuple[str, ...]:
        return tuple([member.worker_id for member in self._all])

    @cached_property
    def _distinct_adapters(self) -> set[tuple[str, ...]]:
        return {replica.member.load.adapters for replica in self.usable if replica.member.load is not None}

    @cached_property
    def _residents(self) -> dict[str, list[Replica]]:
        found: dict[str, list[Replica]] = {}
        for replica in self.usable:
            load = replica.member.load
            if load is not None and load.resident_adapters is not None:
                for adapter in load.resident_adapters:
                    found.setdefault(adapter, []).append(replica)
        return found


def _is_usable(member: "Member") -> bool:
    if member.is_drained:
        return False
    return member.is_healthy and not (member.load is not None and member.load.is_draining)


def _distinct(members: Iterable["Member"]) -> list["Member"]:
    """One member per server: among members with the same id or address, a healthy one, then the most recent report."""
    members = list(members)
    if len({member.worker_id for member in members}) == len({member.url for member in members}) == len(members):
        return members
    best: list[Member] = []
    seen: set[str] = set()
    for member in sorted(members, key=lambda each: (not each.is_healthy, each.load is None, each.age_s)):
        if member.worker_id not in seen and member.url not in seen:
            best.append(member)
            seen |= {member.worker_id, member.url}
    return best
