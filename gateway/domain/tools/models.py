from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned


class ServerTool(Versioned, Base):
    """`tenant_id` None: for everybody. The secret of `credential_header` is sealed (sealing.py)."""

    __tablename__ = "server_tools"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), Index("ix_server_tools_name", "name"))

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID | None] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    description: Mapped[str] = mapped_column(Text)
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The JSON schema of the tool's arguments."""
    url: Mapped[str] = mapped_column(String(2000))
    credential_header: Mapped[str | None] = mapped_column(String(100))
    sealed_credential: Mapped[bytes | None] = mapped_column(LargeBinary)
    timeout_s: Mapped[float]
    max_result_bytes: Mapped[int]
    max_rounds: Mapped[int]
    """In how many rounds of one request the model may call the tool."""
    is_enabled: Mapped[bool]
    created_at: Mapped[datetime]
    changed_at: Mapped[datetime]
