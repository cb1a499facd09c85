from datetime import datetime

from gateway.audit.service import record
from gateway.database import Sessions
from gateway.errors import NotFound
from gateway.principal import Principal
from gateway.tiers.models import Tier
from gateway.tiers.schemas import TierChange


async def change_tier(
    sessions: Sessions, principal: Principal | None, name: str, change: TierChange, *, now: datetime
) -> Tier:
    fields = change.model_dump(exclude_unset=True)
    async with sessions.begin() as session:
        tier = await session.get(Tier, name)
        if tier is None:
            raise NotFound(f"there is no tier {name!r}")
        for field, value in fields.items():
            setattr(tier, field, value)
        record(session, principal, "tier.change", object_id=name, tenant_id=None, now=now, detail=fields)
    return tier
