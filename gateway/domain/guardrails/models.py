from datetime import datetime
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned


class Guardrail(Versioned, Base):
    """`tenant_id` None: the guardrail checks everybody's requests."""

    __tablename__ = "guardrails"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID | None] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    url: Mapped[str] = mapped_column(String(2000))
    sealed_authorization: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The value of the Authorization header, sealed, and bound to this guardrail and to the origin of its URL."""
    model: Mapped[str | None] = mapped_column(String(200))
    """The model that requests to the hook name; None: they name none."""
    checks: Mapped[str] = mapped_column(String(8))
    """`input`, `output` or `both`."""
    categories: Mapped[list[str]] = mapped_column(JSON)
    """The categories that block; empty: whatever the hook flags is blocked."""
    deadline_ms: Mapped[int]
    on_failure: Mapped[str] = mapped_column(String(8))
    """`closed`: a text that cannot be checked is refused; `open`: it passes."""
    window_chars: Mapped[int]
    """How much of a stream is held back until it has been checked."""
    is_enabled: Mapped[bool]
    created_at: Mapped[datetime]
    changed_at: Mapped[datetime]
