"""What binds audit rows together: each has a SHA-256 over itself and the row before; the pepper seals the last one.

Without the pepper nobody can make a seal, so that neither a chain that was calculated anew nor one that was cut passes.
"""

import hashlib
import hmac
import json
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

GENESIS = bytes(32)
"""What stands in for the hash before the first row."""


class Content(NamedTuple):
    """What a row says. `detail`, `before` and `after` are JSON as the database holds it, to the letter."""

    position: int
    id: UUID
    at: datetime
    actor_key_id: UUID | None
    tenant_id: UUID | None
    action: str
    object_id: str
    request_id: str | None
    address: str | None
    detail: str
    before: str | None
    after: str | None


def link(previous: bytes, content: tuple[Any, ...]) -> bytes:
    """The hash of a row after the one whose hash is `previous`; content: the fields of `Content`, `at` in UTC."""
    return hashlib.sha256(previous + json.dumps(content, default=_text).encode()).digest()


def seal_of(num_rows: int, last: bytes, *, pepper: str) -> bytes:
    return hmac.digest(pepper.encode(), b"audit:" + num_rows.to_bytes(8) + last, hashlib.sha256)


def is_sealed(seal: bytes | None, num_rows: int, last: bytes, *, pepper: str) -> bool:
    return seal is not None and num_rows >= 0 and hmac.compare_digest(seal, seal_of(num_rows, last, pepper=pepper))


def _text(value: UUID | datetime) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
