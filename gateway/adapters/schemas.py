from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from gateway.adapters.models import Adapter
from gateway.models.schemas import ModelId


class AdapterDraft(BaseModel):
    """`variants`: base model id -> the adapter's name at that model's workers. `tenant_id` null: for everybody."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[^\s\p{Cc}]+$")]
    variants: Annotated[dict[str, ModelId], Field(min_length=1)]
    tenant_id: UUID | None = None


class AdapterView(BaseModel):
    id: UUID
    name: str
    tenant_id: UUID | None
    variants: dict[str, str]
    created_at: datetime

    @classmethod
    def of(cls, adapter: Adapter) -> "AdapterView":
        """`adapter.variants` must be loaded."""
        return cls(
            id=adapter.id,
            name=adapter.name,
            tenant_id=adapter.tenant_id,
            variants={variant.model_id: variant.worker_name for variant in adapter.variants},
            created_at=adapter.created_at,
        )
