from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from gateway.labels import Name


class TenantDraft(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Name
    tier: Name


class TenantChange(BaseModel):
    """A field that is not sent stays."""

    model_config = ConfigDict(extra="forbid")

    name: Name = ""
    tier: Name = ""
    is_suspended: bool = False


class TenantView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    name: str
    tier: str
    created_at: datetime
    suspended_at: datetime | None
