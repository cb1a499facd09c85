"""An immutable snapshot of tiers, models, adapters, prices and tenant settings, so that requests need no database."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import null, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload

from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter
from gateway.domain.answer_caching.models import CachePolicy
from gateway.domain.answer_caching.terms import CacheTerms
from gateway.domain.erasures.service import leaving_users
from gateway.domain.guardrails.models import Guardrail
from gateway.domain.guardrails.terms import GuardrailsByTenant, GuardrailTerms
from gateway.domain.limits import LimitScope, ScopeLimits, scope_limits
from gateway.domain.models.models import Model
from gateway.domain.prices.models import Discount, Price, Surcharge
from gateway.domain.prices.price_book import DiscountTerms, PriceBook, PriceTerms, SurchargeTerms
from gateway.domain.principal import Principal
from gateway.domain.sessions.models import SessionPolicy
from gateway.domain.sessions.terms import SessionTerms
from gateway.domain.tenants.models import EndUser, Tenant
from gateway.domain.tiers.models import Tier
from gateway.http.errors import Forbidden
from router.fleet import Pool
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
    owners: Mapping[str, str] = field(default_factory=dict)
    """Limit name -> its owner (`this tenant`, `this key`), for limits that are not the tier's own."""

    def owner_of(self, limit: str) -> str:
        """The owner of a limit, as refusals name it."""
        return self.owners.get(limit, f"tier {self.name}")


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """The terms of a tenant that has limits of its own or for its end users."""

    tier: TierTerms
    """The tenant's tier, with the tenant's own limits in place of the tier's."""
    user_limits: ScopeLimits | None
    """The limits of each end user that has none by name."""
    users: Mapping[str, ScopeLimits | None]

    def user_scope(self, user_id: str) -> LimitScope | None:
        limits = self.users.get(user_id, self.user_limits)
        return None if limits is None else LimitScope(f"user:{user_id}", limits)


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
    """Base model id -> the adapter's name at that model's workers, for variants that can be served."""
    created_s: int
    unready: Mapping[str, str]
    """Base model id -> why its variant cannot be served, or cannot be served yet."""
    is_pending: bool
    """At least one variant waits until a worker reports what an adapter has to fit."""


@dataclass(frozen=True, slots=True)
class Catalog:
    tiers: Mapping[str, TierTerms]
    models: Mapping[str, ModelTerms]
    adapters: Mapping[tuple[UUID | None, str], AdapterTerms]
    prices: PriceBook
    tenants: Mapping[str, TenantTerms] = field(default_factory=dict)
    """By tenant id: tenants with limits of their own or for their end users."""
    session_terms: Mapping[UUID, SessionTerms] = field(default_factory=dict)
    """By tenant id: tenants that chose their own."""
    cache_terms: Mapping[UUID, CacheTerms] = field(default_factory=dict)
    """By tenant id: tenants that chose their own."""
    leaving_users: frozenset[tuple[UUID, str]] = frozenset()
    """(tenant id, user id) pairs of end users who are being erased."""
    guardrails: GuardrailsByTenant = field(default_factory=dict)
    """Enabled guardrails by owning tenant; None: those for everybody."""

    def tier_of(self, principal: Principal) -> TierTerms:
        """The principal's tier, with limits of the tenant and the key in place of the tier's.

        Raises Forbidden if the tier no longer exists.
        """
        tier = self.tenant_tier(principal.tenant_text, principal.tier)
        if tier is None:
            raise Forbidden(f"the tier {principal.tier!r} is gone; ask the platform's operator")
        if principal.context_tokens is None and principal.default_max_tokens is None:
            return tier
        tier = replace(tier, default_max_tokens=principal.default_max_tokens or tier.default_max_tokens)
        own = principal.context_tokens
        if own is None or (tier.context_tokens is not None and tier.context_tokens <= own):
            return tier
        return replace(tier, context_tokens=own, owners={**tier.owners, "context_tokens": "this key"})

    def tenant_tier(self, tenant_id: str, tier: str) -> TierTerms | None:
        own = self.tenants.get(tenant_id)
        return self.tiers.get(tier) if own is None else own.tier

    def scopes_of(self, principal: Principal, user_id: str | None) -> tuple[LimitScope, ...]:
        """The scopes besides the tenant that a request counts against: the key and the end user, if they have limits.

        Raises Forbidden for an end user who is being erased.
        """
        if self.leaving_users and (principal.tenant_id, user_id) in self.leaving_users:
            raise Forbidden("this end user is being erased; send no requests for it", param="user", code="user_erased")
        own = self.tenants.get(principal.tenant_text) if user_id else None
        scope = None if own is None or user_id is None else own.user_scope(user_id)
        return principal.limit_scopes if scope is None else (*principal.limit_scopes, scope)

    def guardrails_of(self, tenant_id: UUID) -> tuple[GuardrailTerms, ...]:
        return (*self.guardrails.get(None, ()), *self.guardrails.get(tenant_id, ()))

    def declares(self, pool: Pool) -> bool:
        model = self.models.get(pool.model_id)
        return model is not None and model.pool == pool.name

    def adapter_of(self, tenant_id: UUID, name: str) -> AdapterTerms | None:
        """The tenant's own adapter of this name, else the public one."""
        return self.adapters.get((tenant_id, name)) or self.adapters.get((None, name))

    def adapters_of(self, tenant_id: UUID) -> list[AdapterTerms]:
        visible = {name: terms for (owner, name), terms in self.adapters.items() if owner is None}
        visible |= {name: terms for (owner, name), terms in self.adapters.items() if owner == tenant_id}
        return list(visible.values())


class CatalogCache:
    """Holds the current catalog. While the database is away, the last one stays in use."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.current = Catalog({}, {}, {}, PriceBook(()))
        self.read_at = float("-inf")
        """When reading `current` began, by `time.monotonic()`."""

    async def reload(self) -> None:
        began_at = time.monotonic()
        async with asyncio.timeout(READ_DEADLINE_S):
            self.current = await read_catalog(self._sessions)
        self.read_at = began_at

    async def refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self.refresh()

    async def refresh(self) -> None:
        try:
            await self.reload()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            _log.warning("cannot read the catalog, the last one stands: %s", error)


async def read_catalog(sessions: Sessions) -> Catalog:
    async with sessions() as session:
        tiers = [_terms(TierTerms, tier, derived=("owners",)) for tier in await session.scalars(select(Tier))]
        models = [
            ModelTerms(row.id, row.pool, row.context_window, row.kind, int(row.created_at.timestamp()))
            for row in await session.scalars(select(Model))
        ]
        adapters = [_adapter_terms(row) for row in await session.scalars(_ADAPTERS)]
        policies = {row.tenant_id: _terms(SessionTerms, row) for row in await session.scalars(select(SessionPolicy))}
        caches = {row.tenant_id: _terms(CacheTerms, row) for row in await session.scalars(select(CachePolicy))}
        guardrails = await _read_guardrails(session)
        prices = await read_price_book(session)
        tenants = await _read_tenants(session, {tier.name: tier for tier in tiers})
        leaving = await leaving_users(session)
    return Catalog(
        tiers={tier.name: tier for tier in tiers},
        tenants=tenants,
        models={model.id: model for model in models},
        adapters={(adapter.tenant_id, adapter.name): adapter for adapter in adapters},
        prices=prices,
        session_terms=policies,
        cache_terms=caches,
        leaving_users=leaving,
        guardrails=guardrails,
    )


async def _read_tenants(session: AsyncSession, tiers: Mapping[str, TierTerms]) -> dict[str, TenantTerms]:
    """The terms of tenants that have limits of their own or for their end users, by tenant id."""
    users: dict[UUID, dict[str, dict[str, int]]] = {}
    for user in await session.scalars(select(EndUser)):
        users.setdefault(user.tenant_id, {})[user.user_id] = user.limits
    has_users = Tenant.id.in_(select(EndUser.tenant_id))
    has_limits = or_(Tenant.limits.is_not(null()), Tenant.user_limits.is_not(null()), has_users)
    found = {}
    for tenant in await session.scalars(select(Tenant).where(Tenant.deleted_at.is_(None), has_limits)):
        common: dict[str, int] = tenant.user_limits or {}
        found[str(tenant.id)] = TenantTerms(
            tier=_with_own(tiers[tenant.tier], tenant.limits or {}),
            user_limits=scope_limits(common),
            users={name: scope_limits({**common, **own}) for name, own in users.get(tenant.id, {}).items()},
        )
    return found


async def _read_guardrails(session: AsyncSession) -> GuardrailsByTenant:
    found: dict[UUID | None, list[GuardrailTerms]] = {}
    for row in await session.scalars(select(Guardrail).where(Guardrail.is_enabled).order_by(Guardrail.name)):
        found.setdefault(row.tenant_id, []).append(_terms(GuardrailTerms, row))
    return found


class PriceRows(NamedTuple):
    """The rows that a price book is built from."""

    prices: Sequence[PriceTerms]
    surcharges: Sequence[SurchargeTerms]
    discounts: Sequence[DiscountTerms]


async def read_price_rows(session: AsyncSession) -> PriceRows:
    return PriceRows(
        [_terms(PriceTerms, row) for row in await session.scalars(select(Price))],
        [_terms(SurchargeTerms, row) for row in await session.scalars(select(Surcharge))],
        [_terms(DiscountTerms, row) for row in await session.scalars(select(Discount))],
    )


async def read_price_book(session: AsyncSession) -> PriceBook:
    return PriceBook(*await read_price_rows(session))


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


def _with_own(tier: TierTerms, limits: Mapping[str, int]) -> TierTerms:
    """The tier with a tenant's limits in place of its own."""
    return replace(tier, owners=dict.fromkeys(limits, "this tenant"), **limits)  # type: ignore[arg-type]


def _terms(cls: type[T], row: object, derived: Collection[str] = ()) -> T:
    return cls(**{each.name: getattr(row, each.name) for each in fields(cls) if each.name not in derived})
