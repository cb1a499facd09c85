"""Appends rows to the chain, one after another across all gateways."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import NO_PEPPER
from gateway.domain.audit.chain import GENESIS, Contents, Frame, hash_contents, is_sealed, link, seal_of
from gateway.domain.audit.models import AuditEntry, AuditHead
from gateway.peppers import Peppers
from protocol.ids import new_id

SEAL_ACTION = "audit.seal"
"""The chain was continued from an end that no seal vouched for."""
ERASE_ACTION = "audit.erase"
"""The contents of the rows that `detail.rows` names were erased."""
_HEAD = 1
_SALT_BYTES = 16
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NewEntry:
    at: datetime
    actor_key_id: UUID | None
    """None, and no person either: the platform itself."""
    tenant_id: UUID | None
    action: str
    object_id: str
    request_id: str | None = None
    address: str | None = None
    detail: Json = field(default_factory=dict)
    before: Json | None = None
    after: Json | None = None
    actor_subject: str | None = None
    actor_email: str | None = None


async def append(session: AsyncSession, entries: Sequence[NewEntry]) -> None:
    """Append rows to the chain. Other transactions that append wait until this one ends, so it should end at once."""
    peppers: Peppers = session.info.get("peppers", NO_PEPPER)
    num_rows, last, found = await _take_end(session, peppers)
    if found is not None:
        entries = [NewEntry(entries[0].at, None, None, SEAL_ACTION, "audit_log", detail={"found": found}), *entries]
    rows: list[dict[str, Any]] = []
    for entry in entries:
        num_rows += 1
        frame, contents = _row(entry, num_rows)
        salt = os.urandom(_SALT_BYTES)
        contents_hash = hash_contents(salt, _as_stored(contents))
        last = link(last, Frame(**frame), contents_hash)
        rows.append({**frame, **contents, "hash": last, "salt": salt, "contents_hash": contents_hash})
    await session.execute(insert(AuditEntry), rows)
    end = {"num_rows": num_rows, "hash": last, "seal": seal_of(num_rows, last, pepper=peppers.current)}
    await session.execute(update(AuditHead).values(**end).execution_options(synchronize_session=False))


async def _take_end(session: AsyncSession, peppers: Peppers) -> tuple[int, bytes, str | None]:
    """The number of rows, the hash of the last one and, if no seal vouches for both, what was found instead.

    Writing the head locks it until the transaction ends, so that rows are appended one after another.
    """
    lock = update(AuditHead).where(AuditHead.id == _HEAD).values(id=_HEAD)
    locked = lock.returning(AuditHead.num_rows, AuditHead.hash, AuditHead.seal)
    head = (await session.execute(locked.execution_options(synchronize_session=False))).one_or_none()
    newest = select(AuditEntry.position, AuditEntry.hash).order_by(AuditEntry.position.desc()).limit(1)
    end = (await session.execute(newest)).one_or_none()
    # A change must not fail because somebody meddled with the log: the chain goes on from the existing rows, and its
    # next row records that for good.
    num_rows, last = (0, GENESIS) if end is None else (max(0, end.position), end.hash)
    if head is None:
        await session.execute(insert(AuditHead).values(id=_HEAD, num_rows=num_rows, hash=last))
        return num_rows, last, "no head"
    if (head.num_rows, head.hash) != (num_rows, last):
        return num_rows, last, "another end"
    if is_sealed(head.seal, num_rows, last, peppers=peppers) or (num_rows == 0 and head.seal is None):
        return num_rows, last, None
    return num_rows, last, "no seal" if head.seal is None else "broken seal"


def _row(entry: NewEntry, position: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of `Frame` and of `Contents`."""
    frame = {
        "position": position,
        "id": new_id(entry.at),
        "at": entry.at,
        "actor_key_id": entry.actor_key_id,
        "tenant_id": entry.tenant_id,
        "action": entry.action,
    }
    contents = {
        "object_id": entry.object_id,
        "request_id": entry.request_id,
        "address": entry.address,
        "detail": dict(entry.detail),
        "before": None if entry.before is None else dict(entry.before),
        "after": None if entry.after is None else dict(entry.after),
        "actor_subject": entry.actor_subject,
        "actor_email": entry.actor_email,
    }
    return frame, contents


def _as_stored(contents: dict[str, Any]) -> Contents:
    """The contents as SQLAlchemy's JSON columns write them and both databases' JSON columns keep them."""
    return Contents(
        **{name: json.dumps(value) if isinstance(value, dict) else value for name, value in contents.items()}
    )
