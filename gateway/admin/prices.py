from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from gateway.admin.names import Draft, ModelId, Moment
from gateway.clock import utc_now
from gateway.domain.prices.models import Price
from gateway.domain.prices.service import add_price, delete_price
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep

router = APIRouter(prefix="/prices", tags=["prices"])


NanoUsd = Annotated[int, Field(ge=0, le=10**12)]


class PriceDraft(Draft):
    """Prices of one token in 1e-9 dollars: 100 is $0.10 a million."""

    model_id: ModelId
    prompt_nanousd: NanoUsd
    completion_nanousd: NanoUsd
    cached_prompt_nanousd: NanoUsd | None = None
    """The prompt's price when left out."""
    valid_from: Moment | None = None
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


@router.post("", status_code=201)
async def post_price(draft: PriceDraft, admin: PlatformDep, services: ServicesDep) -> PriceView:
    price = await add_price(services.sessions, admin, **draft.model_dump(), now=utc_now())
    await services.reload()
    return PriceView.model_validate(price)


@router.get("")
async def list_prices(_admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[PriceView]:
    async with sessions() as session:
        return await fetch_page(session, select(Price), Price.version, page, PriceView.model_validate)


@router.delete("/{version}", status_code=204)
async def remove_price(version: str, admin: PlatformDep, services: ServicesDep) -> None:
    """Only a price that is not in force yet; 409 for others, because usage was priced with them."""
    await delete_price(services.sessions, admin, version, now=utc_now())
    await services.reload()
