from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned


class CachePolicy(Versioned, Base):
    """Of a tenant that chose to have answers kept."""

    __tablename__ = "cache_policies"

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    mode: Mapped[str] = mapped_column(String(16))
    """`off`, `exact`: to the same request, `semantic`: also where the last message means the same."""
    is_default: Mapped[bool]
    """Requests use it unless they say no; false: those alone that ask for it."""
    ttl_s: Mapped[int]
    min_similarity: Mapped[float]
    """The cosine of two messages that count as the same."""
    takes_sampled: Mapped[bool]
    """Also answers to requests without `temperature: 0`."""
    changed_at: Mapped[datetime]
