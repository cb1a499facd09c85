"""The names behind the ids in usage events, as far as the visitor may know them."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import or_, select

from gateway.database import Sessions
from gateway.domain.adapters.models import Adapter
from gateway.domain.principal import Principal
from gateway.domain.tenants.models import Tenant


@dataclass(frozen=True)
class Names:
    tenants: Mapping[str, str]
    adapters: Mapping[str, str]


async def names_for(sessions: Sessions, principal: Principal) -> Names:
    """Platform administrators see all names; a tenant sees its own, and those of its own and the public adapters."""
    tenants, adapters = select(Tenant.id, Tenant.name), select(Adapter.id, Adapter.name)
    if not principal.is_platform_admin:
        tenants = tenants.where(Tenant.id == principal.tenant_id)
        adapters = adapters.where(or_(Adapter.tenant_id == principal.tenant_id, Adapter.tenant_id.is_(None)))
    async with sessions() as session:
        tenant_rows = (await session.execute(tenants)).all()
        adapter_rows = (await session.execute(adapters)).all()
    return Names({str(i): name for i, name in tenant_rows}, {str(i): name for i, name in adapter_rows})
