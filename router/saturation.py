"""Whether a pool is full, judged by one picture; `gate.py` turns this into a state that does not flap."""

from collections.abc import Container

import msgspec

from router.fleet import Pool
from router.replicas import Replica, is_sane, is_tight


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """A replica is full with more than `max_waiting` waiting requests, or a share of free KV blocks below
    `min_free_kv`."""

    max_waiting: int = 10
    min_free_kv: float = 0.02


DEFAULT_THRESHOLDS = Thresholds()


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """is_shedding: best-effort requests are kept away to protect the time to first token of others.

    retry_after_s: time after which a refused request is likely to find room.
    """

    is_saturated: bool = False
    is_shedding: bool = False
    retry_after_s: float = 1.0


def is_full(replica: Replica, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> bool:
    """Whether the replica is full. Without a plausible report only this process's own requests count."""
    member, load = replica.member, replica.member.load
    # The report includes our requests that had no token when it came, as waiting or running.
    waiting = max(0, member.in_flight.num_unanswered - member.own_unanswered)
    if load is not None and is_sane(member):
        if member.engine == "tiergate" and not load.num_waiting:
            # Requests sent since then take the free slots first. The free slots of other engines are unknown.
            waiting = max(0, waiting - max(0, load.max_num_seqs - load.num_running))
        waiting += load.num_waiting
    return waiting > thresholds.max_waiting or is_tight(member, thresholds.min_free_kv)


def is_pool_full(pool: Pool, thresholds: Thresholds = DEFAULT_THRESHOLDS, *, said_full: Container[str] = ()) -> bool:
    """Whether every usable replica is full or said so. A pool without usable replicas is unavailable, not full."""
    usable = pool.replicas.usable
    # A generator, because the first replica nearly always decides.
    return bool(usable) and all(
        is_full(replica, thresholds) or replica.member.worker_id in said_full for replica in usable
    )


def is_pool_calm(pool: Pool, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> bool:
    """Whether some replica is so far from full that a few more requests do not fill it."""
    eased = Thresholds(max_waiting=thresholds.max_waiting // 2, min_free_kv=2 * thresholds.min_free_kv)
    return any(not is_full(replica, eased) for replica in pool.replicas.usable)


def num_waiting(pool: Pool) -> int:
    return sum([replica.num_waiting for replica in pool.replicas.usable])
