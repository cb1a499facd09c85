from datetime import datetime

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned


class Model(Versioned, Base):
    """`id` is the name that clients see; the members of `pool` are workers registered for it or configured."""

    __tablename__ = "models"
    __table_args__ = (UniqueConstraint("pool"),)

    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    pool: Mapped[str] = mapped_column(String(64))
    context_window: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
