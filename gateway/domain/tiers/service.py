from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.database import Sessions
from gateway.domain.audit.service import record
from gateway.domain.principal import Principal
from gateway.domain.tiers.models import Tier
from gateway.http.errors import NotFound


async def change_tier(
    sessions: Sessions, principal: Principal | None, name: str, changes: Mapping[str, Any], *, now: datetime
) -> Tier:
    """`changes`: columns to their new values."""
    async with sessions.begin() as session:
        tier = await session.get(Tier, name)
        if tier is None:
            raise NotFound(f"there is no tier {name!r}")
        for field, value in changes.items():
            setattr(tier, field, value)
        record(session, principal, "tier.change", object_id=name, tenant_id=None, now=now, detail=changes)
    return tier
