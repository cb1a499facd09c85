from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Visit(Base):
    """One that has ended has no row: then its cookie says nothing any more."""

    __tablename__ = "console_visits"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"), index=True)
    began_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    address: Mapped[str] = mapped_column(String(64))
    """Where it began."""
    browser: Mapped[str] = mapped_column(String(200))
    """What it says of itself."""
