from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload

from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter, AdapterVariant, Artifact
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.locks import take_lock
from gateway.domain.models.models import Model
from gateway.domain.names import check_adapter_name
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import require_tenant
from gateway.domain.tiers.models import Tier
from gateway.http.errors import Forbidden, InvalidRequest, NotFound
from protocol.artifacts import digest_of
from protocol.ids import new_id


def adapters_visible_to(tenant_id: UUID | None) -> Select[Adapter]:
    """A tenant's own adapters and the public ones; None: all. Variants and their artifacts are loaded with them."""
    query = select(Adapter).options(selectinload(Adapter.variants).selectinload(AdapterVariant.artifact))
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
    tenant_id = owner_of(principal, tenant_id)
    adapter_id = new_id(now)
    async with sessions.begin() as session:
        await take_lock(session, "names")
        await check_free(session, name, tenant_id=tenant_id, served_names=served_names)
        for model_id in variants:
            await check_model(session, model_id, param="variants")
        if not principal.is_platform_admin:
            await _check_worker_names(session, principal.tenant_id, variants)
        adapter = Adapter(id=adapter_id, tenant_id=tenant_id, name=name, created_at=now)
        adapter.variants = [
            await _declared(session, adapter_id, model_id, worker_name) for model_id, worker_name in variants.items()
        ]
        session.add(adapter)
        detail = {"name": name, "variants": dict(variants), "tenant_id": tenant_id and str(tenant_id)}
        await record(
            session,
            principal,
            "adapter.create",
            object_id=adapter.id,
            tenant_id=tenant_id,
            now=now,
            detail=detail,
            after=adapter_shown(adapter),
        )
    return await read_adapter(sessions, adapter_id)


async def delete_adapter(sessions: Sessions, principal: Principal, adapter_id: UUID, *, now: datetime) -> None:
    """Requests under way still finish with the adapter; its files stay for them for a while."""
    async with sessions.begin() as session:
        await take_lock(session, "names")
        adapter = await require_adapter(session, principal, adapter_id)
        before = adapter_shown(adapter)
        await session.delete(adapter)
        await record(
            session,
            principal,
            "adapter.delete",
            object_id=adapter_id,
            tenant_id=adapter.tenant_id,
            now=now,
            detail={"name": adapter.name},
            before=before,
        )


def adapter_shown(adapter: Adapter) -> dict[str, Any]:
    """The adapter as the audit log shows it, with its variants by base model."""
    return shown(adapter) | {"variants": {variant.model_id: shown(variant) for variant in adapter.variants}}


async def read_adapter(sessions: Sessions, adapter_id: UUID) -> Adapter:
    async with sessions() as session:
        adapter = await session.scalar(adapters_visible_to(None).where(Adapter.id == adapter_id))
    if adapter is None:
        raise NotFound("there is no such adapter")
    return adapter


async def require_adapter(session: AsyncSession, principal: Principal, adapter_id: UUID) -> Adapter:
    """An adapter that the principal may administer. Raises NotFound."""
    adapter = await session.scalar(adapters_visible_to(None).where(Adapter.id == adapter_id))
    if adapter is None:
        raise NotFound("there is no such adapter")
    principal.require_tenant(adapter.tenant_id)
    return adapter


def owner_of(principal: Principal, tenant_id: UUID | None) -> UUID | None:
    """The owner of a new adapter. A tenant's administrator may make adapters only for the tenant. Raises NotFound."""
    tenant_id = tenant_id if principal.is_platform_admin else tenant_id or principal.tenant_id
    principal.require_tenant(tenant_id)
    return tenant_id


async def check_free(
    session: AsyncSession, name: str, *, tenant_id: UUID | None, served_names: Collection[str]
) -> None:
    """Check that the name is free and the owner may have one more adapter. `names` must be locked for this to last."""
    await check_adapter_name(session, name, tenant_id=tenant_id, served_names=served_names)
    if tenant_id is not None:
        await _check_quota(session, tenant_id)


async def check_model(session: AsyncSession, model_id: str, *, param: str) -> None:
    if await session.get(Model, model_id) is None:
        raise InvalidRequest(f"{param}: there is no model {model_id!r}", param=param)


async def _declared(session: AsyncSession, adapter_id: UUID, model_id: str, worker_name: str) -> AdapterVariant:
    """A variant that workers have from elsewhere or, if its name is a digest, one whose files the store has already."""
    variant = AdapterVariant(adapter_id=adapter_id, model_id=model_id, worker_name=worker_name)
    digest = digest_of(worker_name)
    if digest is not None:
        artifact = await session.get(Artifact, digest)
        if artifact is None or artifact.is_leaving:
            raise InvalidRequest(f"variants: the store has no adapter {worker_name!r}; upload it", param="variants")
        artifact.unused_at = None
        variant.digest, variant.status = digest, "pending"
    return variant


async def _check_worker_names(session: AsyncSession, tenant_id: UUID, variants: Mapping[str, str]) -> None:
    """A tenant may declare only worker adapters that it sees already: the others may belong to another tenant."""
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
            f"variants: you have no adapter {name!r} for {model_id!r}; upload one or ask the platform's operator",
            param="variants",
        )


async def _check_quota(session: AsyncSession, tenant_id: UUID) -> None:
    tenant = await require_tenant(session, tenant_id)
    tier = await session.get_one(Tier, tenant.tier)
    own = (tenant.limits or {}).get("max_adapters")
    most = tier.max_adapters if own is None else own
    if most is None:
        return
    owned = await session.scalar(select(func.count()).select_from(Adapter).where(Adapter.tenant_id == tenant_id))
    if owned is not None and owned >= most:
        owner = f"tier {tier.name}" if own is None else "this tenant"
        raise Forbidden(f"the limit of {owner} is {most} adapters; delete one first")
