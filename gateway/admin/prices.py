from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from gateway.admin.names import Draft, Id, ModelId, Moment, Name
from gateway.clock import utc_now
from gateway.domain.catalog import read_price_book
from gateway.domain.prices.models import Discount, Price, Surcharge
from gateway.domain.prices.service import add_discount, add_price, add_surcharge, delete_version, record_rerating
from gateway.http.errors import InvalidRequest
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.metering.windows import Window
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep

router = APIRouter(prefix="/prices", tags=["prices"])


ModelQuery = Annotated[str | None, Query(max_length=200)]
NanoUsd = Annotated[int, Field(ge=0, le=10**12)]
BasisPoints = Annotated[int, Field(ge=0, le=10_000)]


class Dated(Draft):
    valid_from: Moment | None = None
    """Defaults to now. A time in the past, where usage is priced already, is allowed only for a correction."""
    is_correction: bool = False
    """Usage since `valid_from` keeps its cost until `tiergate price rerate --apply`."""


class PriceDraft(Dated):
    """Prices per token in nano-dollars (1e-9 dollars): 100 is $0.10 per million tokens."""

    model_id: ModelId
    prompt_nanousd: NanoUsd
    completion_nanousd: NanoUsd
    cached_prompt_nanousd: NanoUsd | None = None
    """Defaults to the prompt's price."""
    minimum_nanousd: NanoUsd = 0
    """The least that a request with any tokens costs, before a discount."""
    cached_answer_basis_points: BasisPoints = 0
    """The share of the output's price that an answer from the cache costs. Its prompt is priced as a cached prompt."""


class SurchargeDraft(Dated):
    """A surcharge on each prompt and answer token that an adapter of the model serves."""

    model_id: ModelId
    adapter_id: Id | None = None
    """Left out: all adapters that have no surcharge of their own."""
    token_nanousd: NanoUsd


class DiscountDraft(Dated):
    """The discount of a tier's tenants in basis points: 1,500 is 15 %. Without `tier` it is the discount for batches,
    which replaces the tier's if it is larger."""

    tier: Name | None = None
    basis_points: BasisPoints


class RerateDraft(Draft):
    """Usage from `start` (inclusive) to `end` (exclusive), priced with the current price book."""

    start: Moment
    end: Moment
    tenant_id: Id | None = None
    apply: bool = False
    """False: only show the difference."""
    after: Annotated[str | None, Field(max_length=4000)] = None


class RerateDifference(BaseModel):
    tenant_id: str
    model: str
    nanousd: int


class RerateView(BaseModel):
    """The result for one page of usage; `next` is null on the last page."""

    num_events: int
    num_changed: int
    old_nanousd: int
    new_nanousd: int
    differences: list[RerateDifference]
    next: str | None


class _View(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    version: str
    valid_from: datetime
    created_at: datetime


class PriceView(_View):
    model_id: str
    prompt_nanousd: int
    cached_prompt_nanousd: int
    completion_nanousd: int
    minimum_nanousd: int
    cached_answer_basis_points: int


class SurchargeView(_View):
    model_id: str
    adapter_id: UUID | None
    token_nanousd: int


class DiscountView(_View):
    tier: str
    """Empty for the discount of batches."""
    basis_points: int


@router.post("", status_code=201)
async def post_price(draft: PriceDraft, admin: PlatformDep, services: ServicesDep) -> PriceView:
    price = await add_price(services.sessions, admin, **draft.model_dump(), now=utc_now())
    await services.reload()
    return PriceView.model_validate(price)


@router.get("")
async def list_prices(
    _admin: AdminDep, sessions: SessionsDep, page: PageDep, model_id: ModelQuery = None
) -> Page[PriceView]:
    query = select(Price) if model_id is None else select(Price).where(Price.model_id == model_id)
    async with sessions() as session:
        return await fetch_page(session, query, Price.version, page, PriceView.model_validate)


@router.delete("/{version}", status_code=204)
async def remove_price(version: str, admin: PlatformDep, services: ServicesDep) -> None:
    """Delete a price that is not in force yet. 409 for any other, because usage has been priced with it."""
    await delete_version(services.sessions, admin, Price, version, now=utc_now())
    await services.reload()


@router.post("/surcharges", status_code=201)
async def post_surcharge(draft: SurchargeDraft, admin: PlatformDep, services: ServicesDep) -> SurchargeView:
    surcharge = await add_surcharge(services.sessions, admin, **draft.model_dump(), now=utc_now())
    await services.reload()
    return SurchargeView.model_validate(surcharge)


@router.get("/surcharges")
async def list_surcharges(
    _admin: PlatformDep, sessions: SessionsDep, page: PageDep, model_id: ModelQuery = None
) -> Page[SurchargeView]:
    query = select(Surcharge) if model_id is None else select(Surcharge).where(Surcharge.model_id == model_id)
    async with sessions() as session:
        return await fetch_page(session, query, Surcharge.version, page, SurchargeView.model_validate)


@router.delete("/surcharges/{version}", status_code=204)
async def remove_surcharge(version: str, admin: PlatformDep, services: ServicesDep) -> None:
    """Delete a surcharge that is not in force yet. 409 for any other."""
    await delete_version(services.sessions, admin, Surcharge, version, now=utc_now())
    await services.reload()


@router.post("/discounts", status_code=201)
async def post_discount(draft: DiscountDraft, admin: PlatformDep, services: ServicesDep) -> DiscountView:
    discount = await add_discount(services.sessions, admin, **draft.model_dump(), now=utc_now())
    await services.reload()
    return DiscountView.model_validate(discount)


@router.get("/discounts")
async def list_discounts(
    _admin: PlatformDep,
    sessions: SessionsDep,
    page: PageDep,
    tier: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[DiscountView]:
    query = select(Discount) if tier is None else select(Discount).where(Discount.tier == tier)
    async with sessions() as session:
        return await fetch_page(session, query, Discount.version, page, DiscountView.model_validate)


@router.delete("/discounts/{version}", status_code=204)
async def remove_discount(version: str, admin: PlatformDep, services: ServicesDep) -> None:
    """Delete a discount that is not in force yet. 409 for any other."""
    await delete_version(services.sessions, admin, Discount, version, now=utc_now())
    await services.reload()


@router.post("/rerate")
async def rerate(draft: RerateDraft, admin: PlatformDep, services: ServicesDep) -> RerateView:
    """Reprice one page of past usage, or only show the difference if `apply` is false; platform administrators only.

    Final invoices keep what they billed; the next ones bill the difference.
    """
    if draft.start >= draft.end:
        raise InvalidRequest("start must be before end", param="start")
    async with services.sessions() as session:
        book = await read_price_book(session)
    tenant_id = None if draft.tenant_id is None else str(draft.tenant_id)
    window = Window(draft.start, draft.end)
    found = await services.rerating.rerate(book, window, tenant_id=tenant_id, after=draft.after, is_applied=draft.apply)
    if draft.apply and found.num_changed:
        await record_rerating(
            services.sessions,
            admin,
            start=draft.start,
            end=draft.end,
            tenant_id=draft.tenant_id,
            num_changed=found.num_changed,
            difference_nanousd=found.new_nanousd - found.old_nanousd,
            now=utc_now(),
        )
    return RerateView(
        num_events=found.num_events,
        num_changed=found.num_changed,
        old_nanousd=found.old_nanousd,
        new_nanousd=found.new_nanousd,
        differences=[
            RerateDifference(tenant_id=tenant, model=model, nanousd=nanousd)
            for (tenant, model), nanousd in sorted(found.by_tenant.items())
        ],
        next=found.next,
    )
