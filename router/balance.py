"""Chooses the replica of a pool for a request: the one whose first token is likely to come soonest.

Waiting is measured in turns: one turn is the time that a prompt ahead in a replica's queue typically takes. A penalty
is added to each candidate's turns (`Replica.waiting_turns`) for work that would have to be repeated there:

| constant     | turns | when                                                                                    |
|--------------|-------|-----------------------------------------------------------------------------------------|
| COLD_ADAPTER | 6     | the adapter must be loaded                                                              |
| OTHER_GROUP  | 1.5   | the replica is not among the homes of the prompt's beginning: nothing of it is cached   |
| OTHER_HOME   | 0.4   | a home, but not the one of this conversation: only the prompt's beginning is cached     |

In a pool with more than FEW replicas only some are considered: the homes of the prompt's beginning on a hash ring
(GROUP of them, so that a popular beginning is cached by several), a few replicas that have the adapter, and random
ones: two of all, and, if reports are fresh and no adapter is requested, two of the least busy quarter. Randomness comes
from a hash of the request id, so gateways with the same picture do not all choose the same replica, and a decision can
be reproduced.
"""

import zlib

import msgspec

from router.fleet import Member, Pool
from router.replicas import Replica, Replicas
from router.ring import hash_key

COLD_ADAPTER = 6.0
OTHER_GROUP = 1.5
OTHER_HOME = 0.4
FEW = 8
GROUP = 4
_MAX_RESIDENTS = 4


class Affinity(msgspec.Struct, frozen=True):
    """group: a hash of the tenant and of the prompt's beginning, which requests may share; turn: a hash of the
    conversation."""

    group: int
    turn: int


class Candidate(msgspec.Struct, frozen=True, order=True):
    """turns: the expected wait, smaller is better; `tie` breaks ties. The counts are live."""

    turns: float
    tie: int
    place: int
    replica: Replica
    is_home: bool
    is_resident: bool

    @property
    def member(self) -> Member:
        return self.replica.member

    @property
    def num_waiting(self) -> int:
        return self.replica.num_waiting

    @property
    def num_running(self) -> int:
        return self.replica.num_running


def order(
    pool: Pool, *, request_id: str, adapter: str | None = None, affinity: Affinity | None = None
) -> tuple[Candidate, ...]:
    """The considered replicas, best first: all usable ones in a small pool. Empty only if there is no usable one."""
    replicas = pool.replicas
    serving = replicas.serving(adapter)
    seed = zlib.crc32(request_id.encode())
    group = _group(replicas, adapter, affinity)
    looked_at = serving if len(serving) <= FEW else _sample(replicas, serving, adapter, group, seed)
    home = group[affinity.turn % len(group)] if affinity is not None and group else None
    scored = []
    for place, replica in enumerate(looked_at):
        if replica.is_taken:
            continue
        turns = replica.waiting_turns()
        if replica is not home and group:
            turns += OTHER_HOME if replica in group else OTHER_GROUP
        is_resident = adapter is None or replica.has_resident(adapter)
        if not is_resident:
            turns += COLD_ADAPTER
        # Ties are broken independently of the order of the replicas in the picture.
        tie = (seed ^ replica.hash) * 2654435761 & 0xFFFFFFFF
        scored.append(Candidate(turns, tie, place, replica, replica is home, is_resident))
    scored.sort()
    return tuple(scored)


def _group(replicas: Replicas, adapter: str | None, affinity: Affinity | None) -> list[Replica]:
    """The homes of the adapter, if one is requested; otherwise the replicas where the prompt's beginning is likely to
    be cached."""
    if adapter is not None:
        key = hash_key("adapter", adapter)
    elif affinity is not None:
        key = affinity.group
    else:
        return []
    return replicas.homes(key, GROUP)


def _sample(
    replicas: Replicas, serving: list[Replica], adapter: str | None, group: list[Replica], seed: int
) -> list[Replica]:
    found = [replica for replica in group if adapter is None or replica.serves(adapter)]
    if adapter is not None:
        residents = replicas.residents(adapter)
        start = seed % len(residents) if residents else 0
        found += (residents + residents)[start : start + min(_MAX_RESIDENTS, len(residents))]
    found += (serving[seed % len(serving)], serving[seed // 7919 % len(serving)])
    if adapter is None and not replicas.is_stale:
        idlest = replicas.idlest
        found += (idlest[seed // 31 % len(idlest)], idlest[seed // 104729 % len(idlest)])
    return list(dict.fromkeys(found))
