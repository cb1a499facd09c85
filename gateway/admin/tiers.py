from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from gateway.admin.names import Draft, PoolName
from gateway.clock import utc_now
from gateway.domain.tiers.models import Tier
from gateway.domain.tiers.service import change_tier
from gateway.http.errors import NotFound
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep

router = APIRouter(prefix="/tiers", tags=["tiers"])


PositiveInt = Annotated[int, Field(ge=1, le=2**53)]
Count = Annotated[int, Field(ge=0, le=2**53)]
SmallCount = Annotated[int, Field(ge=0, le=2**31 - 1)]
OnSaturation = Literal["fallback", "queue", "reject"]


class TierChange(Draft):
    """What PATCH may change; a field that is not sent stays, null means no limit."""

    requests_per_minute: SmallCount | None = None
    tokens_per_minute: Count | None = None
    concurrency: SmallCount | None = None
    tokens_per_day: Count | None = None
    budget_nanousd_per_month: Count | None = None
    context_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    default_max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    max_adapters: SmallCount | None = None
    large_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Of calls to `auto`, by the spread of scores that the router was trained on; goes before complexity_threshold."""
    priority: Annotated[int, Field(ge=0, le=3)] = 2
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    on_saturation: OnSaturation = "fallback"
    complexity_threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    uncertain_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """In place of complexity_threshold where the score is a guess; null: the same."""
    ttft_target_ms: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Best-effort requests are kept from a pool before the first tokens of this tier come later than that."""
    is_hedged: bool = False
    """A first token that is late is asked of a second replica, too."""
    allowed_pools: list[PoolName] | None = None
    """Pools of declared models, or that workers serve."""
    is_best_effort: bool = False


class TierView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    name: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None
    tokens_per_day: int | None
    budget_nanousd_per_month: int | None
    context_tokens: int | None
    default_max_tokens: int
    max_adapters: int | None
    large_share: float | None
    priority: int
    weight: float
    on_saturation: OnSaturation
    complexity_threshold: float
    uncertain_threshold: float | None
    ttft_target_ms: int | None
    is_hedged: bool
    allowed_pools: list[str] | None
    is_best_effort: bool


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
    changes = change.model_dump(exclude_unset=True)
    served_pools = services.registry.fleet.pools
    tier = await change_tier(services.sessions, admin, name, changes, served_pools=served_pools, now=utc_now())
    await services.reload()
    return TierView.model_validate(tier)
