from collections.abc import Collection, Mapping
from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload

from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter, AdapterVariant
from gateway.domain.audit.service import record
from gateway.domain.locks import take_lock
from gateway.domain.models.models import Model
from gateway.domain.names import check_adapter_name
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import require_tenant
from gateway.domain.tiers.models import Tier
from gateway.http.errors import Forbidden, InvalidRequest, NotFound
from protocol.ids import new_id


def adapters_visible_to(tenant_id: UUID | None) -> Select[Adapter]:
    """A tenant's own and the public ones; None: all. Variants come along."""
    query = select(Adapter).options(selectinload(Adapter.variants))
    if tenant_id is None:
        return query
    return query.where(or_(Adapter.tenant_id == tenant_id, Adapter.tenant_id.is_(None)))


async def create_adapter(
    sessions: Sessions,
    principal: Principal,
    *,
    name: str,
    variants: Mapping[str, str],
    tenant_id: UUID | None,
    served_names: Collection[str] = (),
    now: datetime,
) -> Adapter:
    """`variants`: base model id -> the adapter's name at that model's workers. `tenant_id` None: for everybody.

    `served_names`: models and pools that workers serve without a declaration.
    """
    tenant_id = tenant_id if principal.is_platform_admin else tenant_id or principal.tenant_id
    principal.require_tenant(tenant_id)
    adapter = Adapter(id=new_id(now), tenant_id=tenant_id, name=name, created_at=now)
    adapter.variants = [
        AdapterVariant(adapter_id=adapter.id, model_id=model_id, worker_name=worker_name)
        for model_id, worker_name in variants.items()
    ]
    async with sessions.begin() as session:
        await take_lock(session, "names")
        await check_adapter_name(session, name, tenant_id=tenant_id, served_names=served_names)
        await _check_models(session, variants)
        if not principal.is_platform_admin:
            await _check_worker_names(session, principal.tenant_id, variants)
        if tenant_id is not None:
            await _check_quota(session, tenant_id)
        session.add(adapter)
        detail = {"name": name, "variants": dict(variants), "tenant_id": tenant_id and str(tenant_id)}
        record(session, principal, "adapter.create", object_id=adapter.id, tenant_id=tenant_id, now=now, detail=detail)
    return adapter


async def delete_adapter(sessions: Sessions, principal: Principal, adapter_id: UUID, *, now: datetime) -> None:
    async with sessions.begin() as session:
        query = adapters_visible_to(None).where(Adapter.id == adapter_id)
        adapter = await session.scalar(query)
        if adapter is None:
            raise NotFound("there is no such adapter")
        principal.require_tenant(adapter.tenant_id)
        await session.delete(adapter)
        tenant_id = adapter.tenant_id
        record(session, principal, "adapter.delete", object_id=adapter_id, tenant_id=tenant_id, now=now)


async def _check_models(session: AsyncSession, variants: Mapping[str, str]) -> None:
    known = set(await session.scalars(select(Model.id).where(Model.id.in_(variants))))
    unknown = variants.keys() - known
    if unknown:
        raise InvalidRequest(f"variants: there is no model {min(unknown)!r}", param="variants")


async def _check_worker_names(session: AsyncSession, tenant_id: UUID, variants: Mapping[str, str]) -> None:
    """A tenant may give names of its own only to what it sees already: the rest at the workers may be another's."""
    own = select(AdapterVariant.model_id, AdapterVariant.worker_name).where(
        AdapterVariant.adapter_id.in_(
            select(Adapter.id).where(or_(Adapter.tenant_id == tenant_id, Adapter.tenant_id.is_(None)))
        )
    )
    seen = {(model_id, name) for model_id, name in await session.execute(own)}
    hidden = variants.items() - seen
    if hidden:
        model_id, name = min(hidden)
        raise InvalidRequest(
            f"variants: you have no adapter {name!r} for {model_id!r}; ask the platform's operator for it",
            param="variants",
        )


async def _check_quota(session: AsyncSession, tenant_id: UUID) -> None:
    tenant = await require_tenant(session, tenant_id)
    tier = await session.get_one(Tier, tenant.tier)
    if tier.max_adapters is None:
        return
    owned = await session.scalar(select(func.count()).select_from(Adapter).where(Adapter.tenant_id == tenant_id))
    if owned is not None and owned >= tier.max_adapters:
        raise Forbidden(f"the tier {tier.name} allows {tier.max_adapters} adapters; delete one first")
