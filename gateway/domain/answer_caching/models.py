from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned


class CachePolicy(Versioned, Base):
    """The policy of a tenant that chose its own; without a row nothing is cached."""

    __tablename__ = "cache_policies"

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    mode: Mapped[str] = mapped_column(String(16))
    """`off`; `exact`: for the same request; `semantic`: also for a request whose last message means the same."""
    is_default: Mapped[bool]
    """True: requests use the cache unless they opt out; false: only requests that ask for it do."""
    ttl_s: Mapped[int]
    min_similarity: Mapped[float]
    """The least cosine similarity of two messages that count as the same."""
    takes_sampled: Mapped[bool]
    """Also cache answers to requests without `temperature: 0`."""
    changed_at: Mapped[datetime]
