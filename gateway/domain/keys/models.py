from datetime import datetime
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base
from gateway.domain.versions import Versioned
from gateway.peppers import ID_BYTES


class ApiKey(Versioned, Base):
    """`secret_hash` is HMAC-SHA256 of the whole key with a pepper; the key itself is stored nowhere."""

    __tablename__ = "api_keys"
    __table_args__ = (UniqueConstraint("prefix"), UniqueConstraint("previous_prefix"))

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(120))
    prefix: Mapped[str] = mapped_column(String(8))
    secret_hash: Mapped[bytes] = mapped_column(LargeBinary(32))
    pepper_id: Mapped[bytes | None] = mapped_column(LargeBinary(ID_BYTES))
    """The id of the hash's pepper (`gateway.peppers`); None: a version made the key that did not record it."""
    scopes: Mapped[list[str]] = mapped_column(JSON)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    allowed_models: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Pools, models, adapters or `auto`; None: all that the tenant may use."""
    allowed_networks: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Networks that requests may come from, in CIDR notation; None: any."""
    limits: Mapped[dict[str, int] | None] = mapped_column(JSON(none_as_null=True))
    """The key's own limits, which apply besides the tenant's."""
    previous_prefix: Mapped[str | None] = mapped_column(String(8))
    previous_secret_hash: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    previous_pepper_id: Mapped[bytes | None] = mapped_column(LargeBinary(ID_BYTES))
    previous_until: Mapped[datetime | None]
    """`previous_*` describe the secret before the last rotation, which works until then."""
