from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Visit(Base):
    """A login to the console by a key or a person. A visit that has ended has no row, and its cookie is worthless."""

    __tablename__ = "console_visits"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    key_id: Mapped[UUID | None] = mapped_column(ForeignKey("api_keys.id"), index=True)
    person_id: Mapped[UUID | None] = mapped_column(ForeignKey("people.id"), index=True)
    began_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    idle_s: Mapped[int | None]
    """A person's visit ends after this many seconds without a request. None: a key's visit, which does not."""
    idle_until: Mapped[datetime | None]
    address: Mapped[str] = mapped_column(String(64))
    """The network address where the visit began."""
    browser: Mapped[str] = mapped_column(String(200))
    """The browser's description of itself."""
    provider_session: Mapped[str | None] = mapped_column(String(255), index=True)
    """The identity provider's id (`sid`) of the session that led to the visit."""
    sealed_id_token: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Shown to the provider at logout, so that it need not ask who is logging out."""

    @property
    def ends_at(self) -> datetime:
        """When the visit ends if no further request comes."""
        return self.expires_at if self.idle_until is None else min(self.expires_at, self.idle_until)
