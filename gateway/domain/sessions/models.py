from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned


class SessionPolicy(Versioned, Base):
    """Of a tenant that chose something else than the default: a window, not sealed."""

    __tablename__ = "session_policies"

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    overflow: Mapped[str] = mapped_column(String(16))
    """`window`: what leaves the window is forgotten; `summary`: the small model sums it up."""
    is_encrypted: Mapped[bool]
    sealed_key: Mapped[bytes | None]
    """The tenant's key, under the platform's pepper. It stays while it may be needed to read."""
    changed_at: Mapped[datetime]
