from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from gateway.database import Base


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
    """The adapter's name at the workers of one base model."""

    __tablename__ = "adapter_variants"

    adapter_id: Mapped[UUID] = mapped_column(ForeignKey("adapters.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), primary_key=True)
    worker_name: Mapped[str] = mapped_column(String(200))
