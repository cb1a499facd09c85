from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned


class SessionPolicy(Versioned, Base):
    """The policy of a tenant that changed the default, which is a window and no encryption."""

    __tablename__ = "session_policies"

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    overflow: Mapped[str] = mapped_column(String(16))
    """`window`: messages that leave the window are forgotten; `summary`: the small model summarizes them."""
    is_encrypted: Mapped[bool]
    sealed_key: Mapped[bytes | None]
    """The tenant's key, sealed under the platform's pepper. It is kept as long as it may be needed for reading."""
    changed_at: Mapped[datetime]
