from datetime import datetime
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Person(Base):
    """A person who has logged in through the identity provider, with the tenant and scopes of the last login."""

    __tablename__ = "people"
    __table_args__ = (UniqueConstraint("issuer", "subject"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    issuer: Mapped[str] = mapped_column(String(500))
    subject: Mapped[str] = mapped_column(String(255))
    email: Mapped[str | None] = mapped_column(String(320))
    """None: the provider gave no address, or said that the address is unverified."""
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    scopes: Mapped[list[str]] = mapped_column(JSON)
    logged_in_at: Mapped[datetime]


class SpentLogin(Base):
    """A login that led to a visit, kept so that the provider's answer to it cannot lead to another visit."""

    __tablename__ = "spent_logins"

    state_hash: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    expires_at: Mapped[datetime] = mapped_column(index=True)
    """After this time the login would be refused anyway."""
