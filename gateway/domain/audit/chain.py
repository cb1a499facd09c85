"""What binds audit rows together: each has a SHA-256 over itself and the row before; the pepper seals the last one.

Without the pepper nobody can make a seal, so that neither a chain that was calculated anew nor one that was cut passes.

A row's hash covers its frame and, in place of its contents, which may be personal, a salted hash of them: contents and
salt can be erased, and the chain still holds. Rows from before that (`contents_hash` None) were hashed with their
contents; where those are erased, the hash stands as the erasure's own row vouches for it (`trace`).
"""

import hashlib
import hmac
import json
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from gateway.peppers import Peppers

GENESIS = bytes(32)
"""What stands in for the hash before the first row."""


_PERSON = 2
"""Fields of `Contents`, the last."""


class Frame(NamedTuple):
    """What stays of a row for ever."""

    position: int
    id: UUID
    at: datetime
    actor_key_id: UUID | None
    tenant_id: UUID | None
    action: str


class Contents(NamedTuple):
    """What can be erased. `detail`, `before` and `after` are JSON as the database holds it, to the letter."""

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
        """A person only where there is one, so that rows from before there were people keep their hashes."""
        return tuple(self) if self[-_PERSON:] != (None,) * _PERSON else self[:-_PERSON]


BLANK = Contents("", None, None, "{}", None, None)
"""What stands in place of erased contents."""


def link(previous: bytes, frame: Frame, contents_hash: bytes) -> bytes:
    """The hash of a row after the one whose hash is `previous`; `at` in UTC."""
    return _digest(previous, (*frame, contents_hash.hex()))


def link_old(previous: bytes, frame: Frame, contents: Contents) -> bytes:
    """The same of a row from before contents had a hash of their own."""
    return _digest(previous, (*frame, *contents.told))


def hash_contents(salt: bytes, contents: Contents) -> bytes:
    """The salt, gone with the contents, keeps anybody from guessing them by their hash."""
    return _digest(salt, contents.told)


def trace(frame: Frame, contents_hash: bytes | None, row_hash: bytes) -> str:
    """What an erasure names an erased row by, so that nothing that is left of it can be altered afterwards."""
    return _digest(row_hash, (*frame, contents_hash and contents_hash.hex())).hex()


def seal_of(num_rows: int, last: bytes, *, pepper: str) -> bytes:
    return hmac.digest(pepper.encode(), b"audit:" + num_rows.to_bytes(8) + last, hashlib.sha256)


def is_sealed(seal: bytes | None, num_rows: int, last: bytes, *, peppers: Peppers) -> bool:
    return sealed_with(seal, num_rows, last, peppers=peppers) is not None


def sealed_with(seal: bytes | None, num_rows: int, last: bytes, *, peppers: Peppers) -> str | None:
    """The pepper; None: none of these."""
    if seal is None or num_rows < 0:
        return None
    seals = ((pepper, seal_of(num_rows, last, pepper=pepper)) for pepper in peppers.all)
    return next((pepper for pepper, right in seals if hmac.compare_digest(seal, right)), None)


def _digest(before: bytes, values: tuple[Any, ...]) -> bytes:
    return hashlib.sha256(before + json.dumps(values, default=_text).encode()).digest()


def _text(value: UUID | datetime) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
