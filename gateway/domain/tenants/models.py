from datetime import datetime
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, Index, String, UniqueConstraint, false, text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned


class Tenant(Versioned, Base):
    """A deleted tenant's row stays for its invoices; its name is free again. `is_platform`: the operator's tenant."""

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
    """Requests are never sent to a pool's overflow."""
    is_platform: Mapped[bool] = mapped_column(server_default=false(), default=False)
    limits: Mapped[dict[str, int] | None] = mapped_column(JSON(none_as_null=True))
    """Limits in place of the tier's, under the tier's names."""
    user_limits: Mapped[dict[str, int] | None] = mapped_column(JSON(none_as_null=True))
    """The limits of each end user (`user` of a request), where it has none by name."""


class EndUser(Versioned, Base):
    """An end user that the tenant has set limits for by name; `user_id` is the `user` of requests."""

    __tablename__ = "end_users"
    __table_args__ = (UniqueConstraint("tenant_id", "user_id"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    user_id: Mapped[str] = mapped_column(String(512))
    limits: Mapped[dict[str, int]] = mapped_column(JSON)
    created_at: Mapped[datetime]
