from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.service import record
from gateway.domain.locks import take_lock
from gateway.domain.models.models import Model
from gateway.domain.principal import Principal
from gateway.domain.tiers.models import Tier
from gateway.http.errors import InvalidRequest, NotFound


async def change_tier(
    sessions: Sessions,
    principal: Principal | None,
    name: str,
    changes: Mapping[str, Any],
    *,
    served_pools: Collection[str] = (),
    now: datetime,
) -> Tier:
    """`changes`: columns to their new values. `served_pools`: those that workers serve without a declaration."""
    async with sessions.begin() as session:
        # Before the tier is read: a pool must not be deleted between our look and our commit.
        await take_lock(session, "names")
        tier = await session.get(Tier, name)
        if tier is None:
            raise NotFound(f"there is no tier {name!r}")
        await _check_pools(session, changes.get("allowed_pools") or (), served_pools)
        for field, value in changes.items():
            setattr(tier, field, value)
        record(session, principal, "tier.change", object_id=name, tenant_id=None, now=now, detail=changes)
    return tier


async def _check_pools(session: AsyncSession, pools: Collection[str], served_pools: Collection[str]) -> None:
    declared = set(await session.scalars(select(Model.pool).where(Model.pool.in_(pools))))
    unknown = set(pools) - declared - set(served_pools)
    if unknown:
        raise InvalidRequest(
            f"allowed_pools: nothing serves a pool {min(unknown)!r}; GET /admin/v1/models lists them",
            param="allowed_pools",
        )
