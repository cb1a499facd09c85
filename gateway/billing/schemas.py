from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from gateway.models.schemas import ModelId

NanoUsd = Annotated[int, Field(ge=0, le=10**12)]


class PriceDraft(BaseModel):
    """Prices of one token in 1e-9 dollars: 100 is $0.10 a million."""

    model_config = ConfigDict(extra="forbid")

    model_id: ModelId
    prompt_nanousd: NanoUsd
    completion_nanousd: NanoUsd
    cached_prompt_nanousd: NanoUsd | None = None
    """The prompt's price when left out."""
    valid_from: AwareDatetime | None = None
    """Now when left out; never in the past, because past usage is priced already."""


class PriceView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    version: str
    model_id: str
    prompt_nanousd: int
    cached_prompt_nanousd: int
    completion_nanousd: int
    valid_from: datetime
    created_at: datetime
