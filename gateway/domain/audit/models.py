from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class AuditEntry(Base):
    """`tenant_id` is the tenant concerned, None for the platform's own objects."""

    __tablename__ = "audit_log"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    actor_key_id: Mapped[UUID | None]
    tenant_id: Mapped[UUID | None] = mapped_column(index=True)
    action: Mapped[str] = mapped_column(String(64))
    object_id: Mapped[str] = mapped_column(String(200))
    detail: Mapped[dict[str, Any]] = mapped_column(JSON)
