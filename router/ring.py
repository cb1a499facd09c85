"""Consistent hashing: a key's home replicas. They are the same on every gateway, and few change when replicas come or
go."""

from bisect import bisect_left
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

_POINTS = 16
"""Points per member on the ring."""
_MAX_STEPS = 256


class _Ring(NamedTuple):
    """places: ascending; owners[i]: index of the member that places[i] belongs to."""

    places: list[int]
    owners: list[int]


def hash_key(*parts: str) -> int:
    """A 64-bit hash; ("a", "b") and ("ab",) differ."""
    return int.from_bytes(blake2b("\0".join(parts).encode(errors="replace"), digest_size=8).digest(), "big")


def homes(worker_ids: tuple[str, ...], key: int, *, num: int, is_usable: list[bool]) -> list[int]:
    """Indexes of the first `num` usable members clockwise of `key`; fewer if nearly all are unusable."""
    ring = _ring(worker_ids)
    found: list[int] = []
    size = len(ring.owners)
    place = bisect_left(ring.places, key)
    for step in range(min(size, _MAX_STEPS)):
        owner = ring.owners[(place + step) % size]
        if is_usable[owner] and owner not in found:
            found.append(owner)
            if len(found) == num:
                break
    return found


# A picture is drawn twice a second, but a ring changes only with the membership of a pool.
@lru_cache(maxsize=64)
def _ring(worker_ids: tuple[str, ...]) -> _Ring:
    points = []
    for index, worker_id in enumerate(worker_ids):
        for salt in range(_POINTS // 8):
            digest = blake2b(f"{salt}/{worker_id}".encode(errors="replace"), digest_size=64).digest()
            points += [(int.from_bytes(digest[i : i + 8], "big"), index) for i in range(0, 64, 8)]
    points.sort()
    return _Ring([place for place, _ in points], [owner for _, owner in points])
