from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Erasure(Base):
    """The erasure of a tenant or of one of its end users. Fields that only the job needs are cleared at its end."""

    __tablename__ = "erasures"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(index=True)
    """No foreign key, because the tenant's row is deleted."""
    sealed_user: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The end user's name, sealed under the pepper (names.py). Until it is cleared, requests with it are refused."""
    is_of_user: Mapped[bool]
    pseudonym: Mapped[UUID | None]
    """Replaces the tenant's id in usage and invoices. None once the job has finished: nobody can trace it back."""
    salt: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """Used to make pseudonyms of keys and end users. None once the job has finished, as above."""
    requested_by: Mapped[UUID | None]
    """The id of the key, or the person, that requested the erasure."""
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None] = mapped_column(index=True)
    looked_again_at: Mapped[datetime | None]
    """When we last looked for late usage, which a gateway or a topic that was away delivered afterwards."""
    waits_for: Mapped[str | None] = mapped_column(String(400))
    """The store that is away or the work under way that the job waits for; None: the job is not waiting."""
    progress: Mapped[dict[str, Any]] = mapped_column(JSON)
    """What the steps have to remember across a crash, under names of their own."""
    steps: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """The steps that are done: name, finished_at, counts."""
    sha256: Mapped[str | None] = mapped_column(String(64))
    """The digest of the report."""
    seal: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """A seal over `sha256`, made with the pepper."""
