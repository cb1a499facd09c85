"""Ids of requests and of our own objects: UUIDv7 (RFC 9562, section 5.7), so that they sort by time."""

import os
import random
from datetime import datetime
from uuid import UUID

# Seeded once from the operating system: asking it for every request id would take a system call that releases the GIL.
# These ids are unique, not secret.
_random = random.Random()
_draw = _random.getrandbits
os.register_at_fork(after_in_child=_random.seed)


def new_id(now: datetime) -> UUID:
    return make_uuid7(int(now.timestamp() * 1000))


def new_request_id(now: datetime) -> str:
    """As `str(new_id(now))`, at a third of the cost."""
    text = f"{_uuid7(int(now.timestamp() * 1000)):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def make_uuid7(now_ms: int) -> UUID:
    """A UUIDv7 for `now_ms`, milliseconds since the Unix epoch; 74 random bits."""
    return UUID(int=_uuid7(now_ms))


def made_at_s(request_id: str) -> int | None:
    """The creation time of a UUIDv7, in seconds since the Unix epoch; None for other ids."""
    try:
        found = UUID(request_id)
    except ValueError:
        return None
    return (found.int >> 80) // 1000 if found.version == 7 else None


def _uuid7(now_ms: int) -> int:
    return (now_ms & (2**48 - 1)) << 80 | 0x7 << 76 | _draw(12) << 64 | 0b10 << 62 | _draw(62)
