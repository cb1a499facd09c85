from datetime import datetime
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Person(Base):
    """One whom the identity provider let in once. What he may do is what it said at his last login."""

    __tablename__ = "people"
    __table_args__ = (UniqueConstraint("issuer", "subject"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    issuer: Mapped[str] = mapped_column(String(500))
    subject: Mapped[str] = mapped_column(String(255))
    email: Mapped[str | None] = mapped_column(String(320))
    """None: the provider tells none, or says that it has not verified it."""
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    scopes: Mapped[list[str]] = mapped_column(JSON)
    logged_in_at: Mapped[datetime]


class SpentLogin(Base):
    """A login that led to a visit: what the provider answered to it does not lead to another."""

    __tablename__ = "spent_logins"

    state_hash: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    expires_at: Mapped[datetime] = mapped_column(index=True)
    """Afterwards it would not be taken anyway."""
