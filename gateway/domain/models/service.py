from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter, AdapterVariant
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.locks import take_lock
from gateway.domain.models.models import Model
from gateway.domain.names import check_model_names
from gateway.domain.principal import Principal
from gateway.domain.tiers.models import Tier
from gateway.domain.versions import check_version
from gateway.http.errors import Conflict, NotFound


async def declare_model(
    sessions: Sessions,
    principal: Principal | None,
    *,
    model_id: str,
    pool: str,
    context_window: int,
    kind: str,
    version: int | None = None,
    now: datetime,
) -> Model:
    """Create the model, or change the one with this id. A pool serves one model."""
    fields = {"pool": pool, "context_window": context_window, "kind": kind}
    async with sessions.begin() as session:
        await take_lock(session, "names")
        model = await session.get(Model, model_id)
        check_version(model, version)
        if model is not None and (model.pool, model.context_window, model.kind) == (pool, context_window, kind):
            return model
        await check_model_names(session, model_id=model_id, pool=pool)
        if model is not None and model.pool != pool:
            await _check_pool_unused(session, model.pool)
        before = None if model is None else shown(model)
        if model is None:
            model = Model(id=model_id, **fields, created_at=now)
            session.add(model)
        model.pool, model.context_window, model.kind = pool, context_window, kind
        detail = {"id": model_id, **fields}
        await record(
            session,
            principal,
            "model.declare",
            object_id=model_id,
            tenant_id=None,
            now=now,
            detail=detail,
            before=before,
            after=model,
        )
    return model


async def delete_model(
    sessions: Sessions,
    principal: Principal,
    model_id: str,
    *,
    configured_models: Collection[str],
    served_pools: Collection[str],
    version: int | None = None,
    now: datetime,
) -> None:
    """The model's id and its pool's name become free again; prices and usage keep them.

    `configured_models` come back at every start, so they are deleted in the configuration. A pool in `served_pools`
    still has members, which would go on serving without a price. Raises NotFound, or Conflict naming what to do first.
    """
    async with sessions.begin() as session:
        await take_lock(session, "names")
        model = await session.get(Model, model_id)
        if model is None:
            raise NotFound(f"there is no model {model_id!r}")
        check_version(model, version)
        if model_id in configured_models:
            raise Conflict(
                f"{model_id!r} is declared in the configuration, [pools.{model.pool}]; remove it there and restart"
            )
        if model.pool in served_pools:
            raise Conflict(f"the pool {model.pool!r} has members, which serve {model_id!r}; stop them first")
        await _check_unused(session, model)
        before = shown(model)
        await session.delete(model)
        detail = {"pool": model.pool, "context_window": model.context_window, "kind": model.kind}
        action = "model.delete"
        await record(
            session, principal, action, object_id=model_id, tenant_id=None, now=now, detail=detail, before=before
        )


async def _check_unused(session: AsyncSession, model: Model) -> None:
    """Raises Conflict while adapters or tiers refer to the model."""
    variants = select(Adapter.name).join(AdapterVariant).where(AdapterVariant.model_id == model.id)
    adapters = sorted(set(await session.scalars(variants)))
    if adapters:
        raise Conflict(f"{_some(adapters)} are trained for {model.id!r}; delete these adapters first")
    await _check_pool_unused(session, model.pool)


async def _check_pool_unused(session: AsyncSession, pool: str) -> None:
    """Raises Conflict while a tier names the pool."""
    all_tiers = await session.scalars(select(Tier).order_by(Tier.name))
    tiers = [tier.name for tier in all_tiers if pool in (tier.allowed_pools or ())]
    if tiers:
        raise Conflict(f"the pool {pool!r} stands in allowed_pools of {_some(tiers)}; change these tiers first")


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
