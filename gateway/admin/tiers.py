from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from sqlalchemy import select

from gateway.admin.etags import IfMatchDep, TaggedRoute, seen_version
from gateway.admin.limit_fields import Count, SmallCount, Tokens
from gateway.admin.names import Draft, PoolName, TierName, Version
from gateway.clock import utc_now
from gateway.domain.tiers.models import Tier
from gateway.domain.tiers.service import change_tier, create_tier
from gateway.http.errors import NotFound
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep

router = APIRouter(prefix="/tiers", tags=["tiers"], route_class=TaggedRoute)


OnSaturation = Literal["fallback", "queue", "reject"]


class TierFields(Draft):
    """Null means no limit."""

    requests_per_minute: SmallCount | None = None
    tokens_per_minute: Count | None = None
    concurrency: SmallCount | None = None
    tokens_per_day: Count | None = None
    budget_nanousd_per_month: Count | None = None
    context_tokens: Tokens | None = None
    """The most tokens of a prompt."""
    default_max_tokens: Tokens = 1024
    """For requests that set no limit."""
    max_adapters: SmallCount | None = None
    large_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of calls to `auto` meant for the large model, by the spread of scores that the router was trained on.
    Takes precedence over complexity_threshold."""
    priority: Annotated[int, Field(ge=0, le=3)] = 2
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    on_saturation: OnSaturation = "fallback"
    complexity_threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    uncertain_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Replaces complexity_threshold where the score is a guess. Null: the threshold is the same."""
    ttft_target_ms: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Best-effort requests are kept off a pool before this tier's first tokens come later than this."""
    is_hedged: bool = False
    """When a first token is late, a second replica is asked, too."""
    allowed_pools: list[PoolName] | None = None
    """Pools of declared models, or pools that workers serve."""
    is_best_effort: bool = False


def _no_page_of_the_console(name: str) -> str:
    if name == "new":
        raise ValueError("a tier cannot be called new, where the console has its form; choose another name")
    return name


class TierDraft(TierFields):
    """Fields that are not sent are copied from the tier in `copy_of`; without it they have their defaults."""

    name: Annotated[TierName, AfterValidator(_no_page_of_the_console)]
    copy_of: TierName | None = None


class TierChange(TierFields):
    """Fields that are not sent keep their values."""

    is_retired: bool = False
    """A retired tier takes no new tenants; those that have it keep it."""
    version: Version | None = None


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
    retired_at: datetime | None
    version: int


@router.post("", status_code=201)
async def post_tier(draft: TierDraft, admin: PlatformDep, services: ServicesDep) -> TierView:
    # Without a tier to copy, the defaults count as sent.
    fields = draft.model_dump(exclude={"name", "copy_of"}, exclude_unset=draft.copy_of is not None)
    tier = await create_tier(
        services.sessions,
        admin,
        draft.name,
        fields,
        copy_of=draft.copy_of,
        served_pools=services.registry.fleet.pools,
        now=utc_now(),
    )
    await services.reload()
    return TierView.model_validate(tier)


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
async def patch_tier(
    name: str,
    change: TierChange,
    admin: PlatformDep,
    services: ServicesDep,
    if_match: IfMatchDep = None,
) -> TierView:
    changes = change.model_dump(exclude_unset=True, exclude={"version"})
    tier = await change_tier(
        services.sessions,
        admin,
        name,
        changes,
        is_retired=changes.pop("is_retired", None),
        version=seen_version(if_match, change.version),
        served_pools=services.registry.fleet.pools,
        now=utc_now(),
    )
    await services.reload()
    return TierView.model_validate(tier)
