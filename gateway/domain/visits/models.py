from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database import Base


class Visit(Base):
    """One that has ended has no row: then its cookie says nothing any more. It is of a key, or of a person."""

    __tablename__ = "console_visits"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    key_id: Mapped[UUID | None] = mapped_column(ForeignKey("api_keys.id"), index=True)
    person_id: Mapped[UUID | None] = mapped_column(ForeignKey("people.id"), index=True)
    began_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    idle_s: Mapped[int | None]
    """A person's visit ends when nothing was asked for so long. None: of a key, it does not."""
    idle_until: Mapped[datetime | None]
    address: Mapped[str] = mapped_column(String(64))
    """Where it began."""
    browser: Mapped[str] = mapped_column(String(200))
    """What it says of itself."""
    provider_session: Mapped[str | None] = mapped_column(String(255), index=True)
    """The identity provider's own name (`sid`) of the session that led to it."""
    sealed_id_token: Mapped[bytes | None] = mapped_column(LargeBinary)
    """What the provider is shown at the logout, so that it need not ask who leaves."""

    @property
    def ends_at(self) -> datetime:
        """If nothing is asked for any more."""
        return self.expires_at if self.idle_until is None else min(self.expires_at, self.idle_until)
