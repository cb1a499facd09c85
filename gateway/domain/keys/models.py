from datetime import datetime
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class ApiKey(Base):
    """`secret_hash` is HMAC-SHA256 of the whole key with the pepper; the key itself is nowhere."""

    __tablename__ = "api_keys"
    __table_args__ = (UniqueConstraint("prefix"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(120))
    prefix: Mapped[str] = mapped_column(String(8))
    secret_hash: Mapped[bytes] = mapped_column(LargeBinary(32))
    scopes: Mapped[list[str]] = mapped_column(JSON)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
