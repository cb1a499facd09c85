"""Clients ask for models, pools and adapters by name, so these share one namespace: a name that is taken stays taken.

Models and pools belong to everybody. An adapter belongs to everybody or to one tenant, so two tenants may each have a
private adapter of the same name; nothing else may share a name. The checks hold until the transaction ends, because
every change of names takes the lock `names` first.
"""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.domain.adapters.models import Adapter
from gateway.domain.models.models import Model
from gateway.http.errors import Conflict, InvalidRequest
from router.fleet import AUTO, LARGE, SMALL

_ROUTERS_POOLS = frozenset({SMALL, LARGE})
"""The pools that `auto` chooses between, declared or not."""


async def check_model_names(session: AsyncSession, *, model_id: str, pool: str) -> None:
    """A pool may have the name of its own model. Raises InvalidRequest or Conflict; `names` must be locked."""
    if AUTO in (model_id, pool):
        raise InvalidRequest(f"`{AUTO}` is the router's own name; choose another", param="id")
    if model_id in _ROUTERS_POOLS - {pool}:
        raise Conflict(f"{model_id!r} is a pool's name; choose another", param="id")
    names = {model_id, pool}
    others = select(Model).where(Model.id != model_id, or_(Model.id.in_(names), Model.pool.in_(names)))
    for other in await session.scalars(others):
        if other.pool == pool:
            raise Conflict(f"the pool {pool!r} serves {other.id!r} already; one model a pool", param="pool")
        if other.id == pool:
            raise Conflict(f"{pool!r} is a model's name; choose another", param="pool")
        raise Conflict(f"{model_id!r} is the pool of {other.id!r}; choose another name", param="id")
    adapter = await session.scalar(select(Adapter).where(Adapter.name.in_(names)).limit(1))
    if adapter is not None:
        raise Conflict(
            f"{adapter.name!r} is the name of an adapter ({_owner(adapter.tenant_id)}); choose another or delete it",
            param="id" if adapter.name == model_id else "pool",
        )


async def check_adapter_name(
    session: AsyncSession, name: str, *, tenant_id: UUID | None, served_names: Collection[str]
) -> None:
    """`served_names`: models and pools that workers serve undeclared. Raises Conflict; `names` must be locked."""
    is_model = await session.scalar(select(Model.id).where(or_(Model.id == name, Model.pool == name)).limit(1))
    if is_model is not None or name == AUTO or name in _ROUTERS_POOLS or name in served_names:
        raise Conflict(f"{name!r} is a model's or a pool's name; choose another", param="name")
    same = select(Adapter).where(Adapter.name == name).limit(1)
    if tenant_id is not None:
        same = same.where(or_(Adapter.tenant_id == tenant_id, Adapter.tenant_id.is_(None)))
    adapter = await session.scalar(same)
    if adapter is not None:
        raise Conflict(f"there is already an adapter named {name!r} ({_owner(adapter.tenant_id)})", param="name")


def _owner(tenant_id: UUID | None) -> str:
    return "everybody's" if tenant_id is None else f"of the tenant {tenant_id}"
