from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from gateway.labels import Name
from gateway.principal import Scope


class KeyDraft(BaseModel):
    """`tenant_id` may be left out by a tenant's own administrator."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: UUID | None = None
    name: Name
    scopes: Annotated[list[Scope], Field(min_length=1)] = ["inference"]


class KeyView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    tenant_id: UUID
    name: str
    prefix: str
    scopes: list[Scope]
    created_at: datetime
    revoked_at: datetime | None


class NewKeyView(KeyView):
    key: str
    """The key itself, shown this once."""
