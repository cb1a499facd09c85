"""An immutable picture of tiers, models, adapters and prices, so that requests need no database."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload

from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter
from gateway.domain.models.models import Model
from gateway.domain.prices.models import Discount, Price, Surcharge
from gateway.domain.prices.price_book import DiscountTerms, PriceBook, PriceTerms, SurchargeTerms
from gateway.domain.tiers.models import Tier
from router.policy import OnSaturation

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
_log = logging.getLogger(__name__)

REFRESH_S = 2.0
READ_DEADLINE_S = 5.0
_ADAPTERS = select(Adapter).options(selectinload(Adapter.variants))


@dataclass(frozen=True, slots=True)
class TierTerms:
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


@dataclass(frozen=True, slots=True)
class ModelTerms:
    id: str
    pool: str
    context_window: int
    kind: str
    created_s: int


@dataclass(frozen=True, slots=True)
class AdapterTerms:
    id: UUID
    name: str
    tenant_id: UUID | None
    variants: Mapping[str, str]
    """Base model id -> name at that model's workers, of those that can be served."""
    created_s: int
    unready: Mapping[str, str]
    """Base model id -> why its variant cannot be served, or not yet."""
    is_pending: bool
    """One of them waits for a worker's word."""


@dataclass(frozen=True, slots=True)
class Catalog:
    tiers: Mapping[str, TierTerms]
    models: Mapping[str, ModelTerms]
    adapters: Mapping[tuple[UUID | None, str], AdapterTerms]
    prices: PriceBook

    def adapter_of(self, tenant_id: UUID, name: str) -> AdapterTerms | None:
        """The tenant's own adapter of this name, else the public one."""
        return self.adapters.get((tenant_id, name)) or self.adapters.get((None, name))

    def adapters_of(self, tenant_id: UUID) -> list[AdapterTerms]:
        visible = {name: terms for (owner, name), terms in self.adapters.items() if owner is None}
        visible |= {name: terms for (owner, name), terms in self.adapters.items() if owner == tenant_id}
        return list(visible.values())


class CatalogCache:
    """The current picture. The last one stands while the database is away."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.current = Catalog({}, {}, {}, PriceBook(()))
        self.read_at = float("-inf")
        """When the reading of it began, `time.monotonic()`."""

    async def reload(self) -> None:
        began_at = time.monotonic()
        async with asyncio.timeout(READ_DEADLINE_S):
            self.current = await read_catalog(self._sessions)
        self.read_at = began_at

    async def refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.reload()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                _log.warning("cannot read the catalog, the last one stands: %s", error)


async def read_catalog(sessions: Sessions) -> Catalog:
    async with sessions() as session:
        tiers = [_terms(TierTerms, tier) for tier in await session.scalars(select(Tier))]
        models = [
            ModelTerms(row.id, row.pool, row.context_window, row.kind, int(row.created_at.timestamp()))
            for row in await session.scalars(select(Model))
        ]
        adapters = [_adapter_terms(row) for row in await session.scalars(_ADAPTERS)]
        prices = await read_price_book(session)
    return Catalog(
        tiers={tier.name: tier for tier in tiers},
        models={model.id: model for model in models},
        adapters={(adapter.tenant_id, adapter.name): adapter for adapter in adapters},
        prices=prices,
    )


async def read_price_book(session: AsyncSession) -> PriceBook:
    return PriceBook(
        [_terms(PriceTerms, row) for row in await session.scalars(select(Price))],
        [_terms(SurchargeTerms, row) for row in await session.scalars(select(Surcharge))],
        [_terms(DiscountTerms, row) for row in await session.scalars(select(Discount))],
    )


def _adapter_terms(adapter: Adapter) -> AdapterTerms:
    return AdapterTerms(
        adapter.id,
        adapter.name,
        adapter.tenant_id,
        {each.model_id: each.worker_name for each in adapter.variants if each.status == "ready"},
        int(adapter.created_at.timestamp()),
        {each.model_id: each.reason or each.status for each in adapter.variants if each.status != "ready"},
        any(each.status == "pending" for each in adapter.variants),
    )


def _terms(cls: type[T], row: object) -> T:
    return cls(**{field.name: getattr(row, field.name) for field in fields(cls)})
