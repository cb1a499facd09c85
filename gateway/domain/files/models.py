from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class StoredFile(Base):
    """A file's content is in the object store, under `digest` and `id`."""

    __tablename__ = "files"
    __table_args__ = (Index("ix_files_tenant_id", "tenant_id"), Index("ix_files_expires_at", "expires_at"))

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    purpose: Mapped[str] = mapped_column(String(32))
    filename: Mapped[str] = mapped_column(String(255))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    is_ready: Mapped[bool]
    """False: its content is being uploaded, with room reserved for it; or the file is being removed."""
