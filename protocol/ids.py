"""Ids of requests and of our own objects: UUIDv7 (RFC 9562, section 5.7), so that they sort by time."""

import secrets
from datetime import datetime
from uuid import UUID


def new_id(now: datetime) -> UUID:
    return make_uuid7(int(now.timestamp() * 1000))


def make_uuid7(now_ms: int) -> UUID:
    """A UUIDv7 for `now_ms`, milliseconds since the Unix epoch; 74 random bits."""
    rand_a, rand_b = secrets.randbits(12), secrets.randbits(62)
    return UUID(int=(now_ms & (2**48 - 1)) << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b)
