"""Which replica of a pool takes a request: the least loaded, first."""

import zlib
from collections.abc import Iterable

from router.fleet import Member

_LoadKey = tuple[int, float, float, int]


def order(members: Iterable[Member], *, request_id: str) -> tuple[Member, ...]:
    """Fewest waiting, then least busy, then most free KV blocks.

    Ties fall by a hash of request and replica, so that gateways with the same picture do not all pick the same one.
    """
    found = tuple(members)
    if len(found) < 2:
        return found
    return tuple(sorted(found, key=lambda member: _load_key(member, request_id)))


def _load_key(member: Member, request_id: str) -> _LoadKey:
    tie = zlib.crc32(f"{request_id}/{member.worker_id}".encode())
    load = member.load
    if load is None:
        return 0, 0.0, 0.0, tie
    busy = load.num_running / max(1, load.max_num_seqs)
    used = 1.0 - load.num_free_blocks / max(1, load.num_blocks)
    return load.num_waiting, busy, used, tie
