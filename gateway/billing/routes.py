from fastapi import APIRouter
from sqlalchemy import select

from gateway.billing.models import Price
from gateway.billing.schemas import PriceDraft, PriceView
from gateway.billing.service import add_price
from gateway.dependencies import AdminDep, PlatformDep, ServicesDep, SessionsDep
from gateway.identity import utc_now
from gateway.pages import Page, PageDep, fetch_page

router = APIRouter(prefix="/prices", tags=["prices"])


@router.post("", status_code=201)
async def post_price(draft: PriceDraft, admin: PlatformDep, services: ServicesDep) -> PriceView:
    price = await add_price(services.sessions, admin, draft, now=utc_now())
    await services.reload()
    return PriceView.model_validate(price)


@router.get("")
async def list_prices(_admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[PriceView]:
    async with sessions() as session:
        return await fetch_page(session, select(Price), Price.version, page, PriceView.model_validate)
