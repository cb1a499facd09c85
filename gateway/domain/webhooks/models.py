from datetime import datetime
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Webhook(Base):
    __tablename__ = "webhooks"
    __table_args__ = (Index("ix_webhooks_tenant_id", "tenant_id"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    url: Mapped[str] = mapped_column(String(2000))
    events: Mapped[list[str]] = mapped_column(JSON)
    sealed_secret: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Sealed by secrets.py. None: made by a version that derived the secret from the pepper each time."""
    created_at: Mapped[datetime]


class Delivery(Base):
    """`id` is the event's, the same in every attempt, so that a receiver can recognize a repetition."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        UniqueConstraint("webhook_id", "occasion"),
        Index("ix_webhook_deliveries_next_attempt_at", "next_attempt_at"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    webhook_id: Mapped[UUID] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    occasion: Mapped[str] = mapped_column(String(120))
    """What the event is about, so that nobody is told twice: `budget.80:2026-03`."""
    body: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    num_attempts: Mapped[int]
    next_attempt_at: Mapped[datetime | None]
    """None: delivered, or given up."""
    delivered_at: Mapped[datetime | None]
    last_status: Mapped[int | None]
    last_error: Mapped[str | None] = mapped_column(String(300))


class Lease(Base):
    """Work that only one process may do at a time: `holder` may, until `until`."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    until: Mapped[datetime]
