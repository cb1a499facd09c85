"""The audit log's tables: a row for every change, written in its transaction and chained to the row before."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, BigInteger, LargeBinary, String, false
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class AuditEntry(Base):
    """`tenant_id` is the tenant concerned, None for the platform's own objects."""

    __tablename__ = "audit_log"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, unique=True)
    """1, 2, 3, ... in commit order."""
    at: Mapped[datetime] = mapped_column(index=True)
    actor_key_id: Mapped[UUID | None]
    actor_subject: Mapped[str | None] = mapped_column(String(255), index=True)
    """The person's subject at the identity provider, if a person acted instead of a key."""
    actor_email: Mapped[str | None] = mapped_column(String(320), index=True)
    """The person's email address at that time."""
    tenant_id: Mapped[UUID | None] = mapped_column(index=True)
    action: Mapped[str] = mapped_column(String(64), index=True)
    object_id: Mapped[str] = mapped_column(String(200), index=True)
    request_id: Mapped[str | None] = mapped_column(String(64))
    address: Mapped[str | None] = mapped_column(String(64))
    """The network address that the request came from."""
    detail: Mapped[dict[str, Any]] = mapped_column(JSON)
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`before` and `after` hold the object's fields; for a change, only those that differ."""
    hash: Mapped[bytes] = mapped_column(LargeBinary(32))
    salt: Mapped[bytes | None] = mapped_column(LargeBinary(16))
    contents_hash: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """Salted hash of the row's `chain.Contents`; None: `hash` covers the contents directly."""
    is_erased: Mapped[bool] = mapped_column(server_default=false(), default=False)
    """The contents are blank and the salt is gone; a later row `audit.erase` names this one."""


class AuditHead(Base):
    """A single row with the length of the chain and its last hash; `seal` vouches for both."""

    __tablename__ = "audit_head"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    num_rows: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[bytes] = mapped_column(LargeBinary(32))
    seal: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """None: the rows are from before there were seals."""
