"""When a pool is full, as one picture of it tells; `gate.py` makes of that a state that does not flap."""

from collections.abc import Container

import msgspec

from router.fleet import Pool
from router.replicas import Replica, is_sane, is_tight


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """A replica is full with more than `max_waiting` requests waiting, or with a smaller share of free KV blocks."""

    max_waiting: int = 10
    min_free_kv: float = 0.02


DEFAULT_THRESHOLDS = Thresholds()


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """is_shedding: best-effort requests are kept away, so that others keep their time to first token.

    retry_after_s: when a refused request is likely to find room.
    """

    is_saturated: bool = False
    is_shedding: bool = False
    retry_after_s: float = 1.0


def is_full(replica: Replica, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> bool:
    """A server that reports nothing that can be true is full only by what we ourselves have sent there."""
    member, load = replica.member, replica.member.load
    # Of ours, those that had no token when the report came are in its numbers, waiting or being computed.
    waiting = max(0, member.in_flight.num_unanswered - member.own_unanswered)
    if load is not None and is_sane(member):
        if member.engine == "tiergate" and not load.num_waiting:
            # What was sent since takes the free slots first; how many others have, nobody tells.
            waiting = max(0, waiting - max(0, load.max_num_seqs - load.num_running))
        waiting += load.num_waiting
    return waiting > thresholds.max_waiting or is_tight(member, thresholds.min_free_kv)


def is_pool_full(pool: Pool, thresholds: Thresholds = DEFAULT_THRESHOLDS, *, said_full: Container[str] = ()) -> bool:
    """Whether every usable replica is, or said so; a pool without one is unavailable, which is something else."""
    usable = pool.replicas.usable
    # A generator, because the first one nearly always tells.
    return bool(usable) and all(
        is_full(replica, thresholds) or replica.member.worker_id in said_full for replica in usable
    )


def is_pool_calm(pool: Pool, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> bool:
    """Whether some replica is so far from full that a few requests more do not fill it."""
    eased = Thresholds(max_waiting=thresholds.max_waiting // 2, min_free_kv=2 * thresholds.min_free_kv)
    return any(not is_full(replica, eased) for replica in pool.replicas.usable)


def num_waiting(pool: Pool) -> int:
    return sum([replica.num_waiting for replica in pool.replicas.usable])
