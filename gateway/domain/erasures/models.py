from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Erasure(Base):
    """Of a tenant, or of one end user of it. What only carrying it out needs is gone once it has finished."""

    __tablename__ = "erasures"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(index=True)
    """No foreign key: the tenant's row goes."""
    sealed_user: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The end user's name under the pepper (names.py), until it has finished. So long no request with it is taken."""
    is_of_user: Mapped[bool]
    pseudonym: Mapped[UUID | None]
    """What stands in the tenant's place in usage and invoices. None once it has finished: nobody can go back."""
    salt: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """What pseudonyms of keys and end users are made with; as above."""
    requested_by: Mapped[UUID | None]
    """The key of who asked for it."""
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None] = mapped_column(index=True)
    looked_again_at: Mapped[datetime | None]
    """When usage that came late, from a gateway or a topic that was away, was last looked for."""
    waits_for: Mapped[str | None] = mapped_column(String(400))
    """The store that is away or the work that is under way; None: it goes on."""
    progress: Mapped[dict[str, Any]] = mapped_column(JSON)
    """What a step has to know after a crash, by its own names."""
    steps: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Those that are done: name, finished_at, counts."""
    sha256: Mapped[str | None] = mapped_column(String(64))
    """Over the report."""
    seal: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """Under the pepper, over `sha256`."""
