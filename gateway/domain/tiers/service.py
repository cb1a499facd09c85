from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.locks import take_lock
from gateway.domain.models.models import Model
from gateway.domain.principal import Principal
from gateway.domain.tiers.models import Tier
from gateway.domain.versions import check_version
from gateway.http.errors import Conflict, InvalidRequest, NotFound

_COPIED = [column.key for column in Tier.__table__.columns if column.key not in ("name", "retired_at", "version")]


async def create_tier(
    sessions: Sessions,
    principal: Principal,
    name: str,
    fields: Mapping[str, Any],
    *,
    copy_of: str | None,
    served_pools: Collection[str] = (),
    now: datetime,
) -> Tier:
    """`fields`: columns and their values, in place of those of the copied tier."""
    try:
        async with sessions.begin() as session:
            await take_lock(session, "names")
            model = None if copy_of is None else await session.get(Tier, copy_of)
            if copy_of is not None and model is None:
                raise InvalidRequest(f"there is no tier {copy_of!r} to copy", param="copy_of")
            copied = {} if model is None else {column: getattr(model, column) for column in _COPIED}
            await _check_pools(session, fields.get("allowed_pools") or (), served_pools)
            tier = Tier(name=name, retired_at=None, **{**copied, **fields})
            session.add(tier)
            detail = {"copy_of": copy_of, **fields}
            await record(
                session, principal, "tier.create", object_id=name, tenant_id=None, now=now, detail=detail, after=tier
            )
    except IntegrityError:
        raise Conflict(f"there is already a tier named {name!r}", param="name") from None
    return tier


async def change_tier(
    sessions: Sessions,
    principal: Principal | None,
    name: str,
    changes: Mapping[str, Any],
    *,
    is_retired: bool | None = None,
    version: int | None = None,
    served_pools: Collection[str] = (),
    now: datetime,
) -> Tier:
    """`changes`: columns and their new values. No tenant may move to a retired tier; tenants that have it keep it.

    `served_pools`: pools that workers serve without a declaration.
    """
    async with sessions.begin() as session:
        # Lock before the tier is read: a pool must not be deleted between our check and our commit.
        await take_lock(session, "names")
        tier = await session.get(Tier, name)
        if tier is None:
            raise NotFound(f"there is no tier {name!r}")
        check_version(tier, version)
        detail, before = dict(changes), shown(tier)
        if is_retired is not None:
            detail["is_retired"] = is_retired
            tier.retired_at = (tier.retired_at or now) if is_retired else None
        await _check_pools(session, changes.get("allowed_pools") or (), served_pools)
        for field, value in changes.items():
            setattr(tier, field, value)
        await record(
            session,
            principal,
            "tier.change",
            object_id=name,
            tenant_id=None,
            now=now,
            detail=detail,
            before=before,
            after=tier,
        )
    return tier


async def _check_pools(session: AsyncSession, pools: Collection[str], served_pools: Collection[str]) -> None:
    declared = set(await session.scalars(select(Model.pool).where(Model.pool.in_(pools))))
    unknown = set(pools) - declared - set(served_pools)
    if unknown:
        raise InvalidRequest(
            f"allowed_pools: nothing serves a pool {min(unknown)!r}; GET /admin/v1/models lists them",
            param="allowed_pools",
        )
