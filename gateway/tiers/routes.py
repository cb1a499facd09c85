from fastapi import APIRouter
from sqlalchemy import select

from gateway.dependencies import AdminDep, PlatformDep, ServicesDep, SessionsDep
from gateway.errors import NotFound
from gateway.identity import utc_now
from gateway.pages import Page, PageDep, fetch_page
from gateway.tiers.models import Tier
from gateway.tiers.schemas import TierChange, TierView
from gateway.tiers.service import change_tier

router = APIRouter(prefix="/tiers", tags=["tiers"])


@router.get("")
async def list_tiers(_admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[TierView]:
    async with sessions() as session:
        return await fetch_page(session, select(Tier), Tier.name, page, TierView.model_validate)


@router.get("/{name}")
async def get_tier(name: str, _admin: AdminDep, sessions: SessionsDep) -> TierView:
    async with sessions() as session:
        tier = await session.get(Tier, name)
    if tier is None:
        raise NotFound(f"there is no tier {name!r}")
    return TierView.model_validate(tier)


@router.patch("/{name}")
async def patch_tier(name: str, change: TierChange, admin: PlatformDep, services: ServicesDep) -> TierView:
    tier = await change_tier(services.sessions, admin, name, change, now=utc_now())
    await services.reload()
    return TierView.model_validate(tier)
