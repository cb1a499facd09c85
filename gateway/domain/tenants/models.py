from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Tenant(Base):
    __tablename__ = "tenants"
    __table_args__ = (UniqueConstraint("name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    tier: Mapped[str] = mapped_column(ForeignKey("tiers.name"))
    created_at: Mapped[datetime]
    suspended_at: Mapped[datetime | None]
