"""The audit log's hash chain: each row has a SHA-256 over itself and the row before; the pepper seals the last one.

Without the pepper nobody can make a seal, so neither a recalculated chain nor a truncated one passes.

A row's hash covers its frame and a salted hash of its contents, not the contents themselves, which may be personal: so
contents and salt can be erased and the chain still holds. Older rows (`contents_hash` None) were hashed with their
contents; if those are erased, the erasure's own row vouches for the hash (`trace`).
"""

import hashlib
import hmac
import json
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from gateway.peppers import Peppers

GENESIS = bytes(32)
"""Takes the place of the previous hash for the first row."""


_PERSON = 2
"""How many fields at the end of `Contents` describe the person."""


class Frame(NamedTuple):
    """The part of a row that is never erased."""

    position: int
    id: UUID
    at: datetime
    actor_key_id: UUID | None
    tenant_id: UUID | None
    action: str


class Contents(NamedTuple):
    """The part of a row that can be erased. `detail`, `before` and `after` are JSON, exactly as in the database."""

    object_id: str
    request_id: str | None
    address: str | None
    detail: str
    before: str | None
    after: str | None
    actor_subject: str | None = None
    actor_email: str | None = None

    @property
    def told(self) -> tuple[str | None, ...]:
        """The values that are hashed: without the person if there is none, so that rows older than these fields keep
        their hashes."""
        return tuple(self) if self[-_PERSON:] != (None,) * _PERSON else self[:-_PERSON]


BLANK = Contents("", None, None, "{}", None, None)
"""Takes the place of erased contents."""


def link(previous: bytes, frame: Frame, contents_hash: bytes) -> bytes:
    """The hash of the row after the one with the hash `previous`; `frame.at` must be in UTC."""
    return _digest(previous, (*frame, contents_hash.hex()))


def link_old(previous: bytes, frame: Frame, contents: Contents) -> bytes:
    """As `link`, for a row from before contents had a hash of their own."""
    return _digest(previous, (*frame, *contents.told))


def hash_contents(salt: bytes, contents: Contents) -> bytes:
    """The salt is erased with the contents, so that nobody can check guesses at them against the hash."""
    return _digest(salt, contents.told)


def trace(frame: Frame, contents_hash: bytes | None, row_hash: bytes) -> str:
    """The digest by which an erasure names an erased row, so that the rest of the row cannot be altered afterwards."""
    return _digest(row_hash, (*frame, contents_hash and contents_hash.hex())).hex()


def seal_of(num_rows: int, last: bytes, *, pepper: str) -> bytes:
    return hmac.digest(pepper.encode(), b"audit:" + num_rows.to_bytes(8) + last, hashlib.sha256)


def is_sealed(seal: bytes | None, num_rows: int, last: bytes, *, peppers: Peppers) -> bool:
    return sealed_with(seal, num_rows, last, peppers=peppers) is not None


def sealed_with(seal: bytes | None, num_rows: int, last: bytes, *, peppers: Peppers) -> str | None:
    """The pepper that made the seal; None: none of `peppers` did."""
    if seal is None or num_rows < 0:
        return None
    seals = ((pepper, seal_of(num_rows, last, pepper=pepper)) for pepper in peppers.all)
    return next((pepper for pepper, right in seals if hmac.compare_digest(seal, right)), None)


def _digest(before: bytes, values: tuple[Any, ...]) -> bytes:
    return hashlib.sha256(before + json.dumps(values, default=_text).encode()).digest()


def _text(value: UUID | datetime) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
