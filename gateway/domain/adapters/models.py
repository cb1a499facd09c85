from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, UniqueConstraint, false, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from gateway.database import Base

VariantStatus = Literal["ready", "pending", "refused"]


class Adapter(Base):
    """Private to one tenant, or public (`tenant_id` None). Names are unique within their owner."""

    __tablename__ = "adapters"
    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        # NULLs are distinct in a unique constraint, so public names need their own.
        Index(
            "ux_adapters_public_name",
            "name",
            unique=True,
            sqlite_where=text("tenant_id IS NULL"),
            postgresql_where=text("tenant_id IS NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID | None] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(120))
    created_at: Mapped[datetime]
    variants: Mapped[list["AdapterVariant"]] = relationship(lazy="raise", cascade="all, delete-orphan")


class AdapterVariant(Base):
    """An adapter for one base model. Workers know it as `worker_name`, `sha256:<digest>` for files in the store."""

    __tablename__ = "adapter_variants"
    __table_args__ = (Index("ix_adapter_variants_digest", "digest"),)

    adapter_id: Mapped[UUID] = mapped_column(ForeignKey("adapters.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), primary_key=True)
    worker_name: Mapped[str] = mapped_column(String(200))
    digest: Mapped[str | None] = mapped_column(ForeignKey("adapter_artifacts.digest"))
    """None: workers have the adapter from elsewhere, and nothing about its files is known here."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Grows by one with each replacement."""
    status: Mapped[str] = mapped_column(String(16), server_default="ready")
    """pending: no worker has reported yet what an adapter has to fit. refused: it does not fit; `reason` says why."""
    reason: Mapped[str | None] = mapped_column(String(600))
    changed_at: Mapped[datetime | None]
    artifact: Mapped["Artifact | None"] = relationship(lazy="raise", viewonly=True)


class Artifact(Base):
    """An adapter's files in the store, under their digest; several variants may share them."""

    __tablename__ = "adapter_artifacts"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    rank: Mapped[int]
    num_layers: Mapped[int]
    shapes: Mapped[dict[str, tuple[int, int]]] = mapped_column(JSON)
    """Projection -> (out, in)."""
    created_at: Mapped[datetime]
    unused_at: Mapped[datetime | None]
    """Since when no variant uses the files; they stay for a while for requests under way."""
    is_leaving: Mapped[bool] = mapped_column(server_default=false())
    """The files are being removed."""
