from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, false, text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Tenant(Base):
    """A deleted tenant's row stays for its invoices; its name is free again. `is_platform`: the operator's own."""

    __tablename__ = "tenants"
    __table_args__ = (
        Index(
            "ux_tenants_live_name",
            "name",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    tier: Mapped[str] = mapped_column(ForeignKey("tiers.name"))
    created_at: Mapped[datetime]
    suspended_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    is_local_only: Mapped[bool] = mapped_column(server_default=false(), default=False)
    """Its requests never leave for a pool's overflow."""
    is_platform: Mapped[bool] = mapped_column(server_default=false(), default=False)
