from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

RESERVED_NAMES = frozenset({"auto"})
ModelId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\p{Cc}]+$")]


class ModelDraft(BaseModel):
    """A model and the pool that serves it; posting an id again changes it."""

    model_config = ConfigDict(extra="forbid")

    id: ModelId
    pool: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
    context_window: Annotated[int, Field(ge=1, le=2**31 - 1)]
    kind: Literal["chat", "embedding"] = "chat"


class ModelView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: str
    pool: str
    context_window: int
    kind: str
    created_at: datetime
