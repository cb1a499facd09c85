from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Select, select

from gateway.domain.keys.models import ApiKey
from gateway.domain.tenants.models import Tenant


def live_keys(prefixes: Collection[str]) -> Select[ApiKey, Tenant]:
    """Across tenants: at this point the key is all we know of the caller."""
    return (
        select(ApiKey, Tenant)
        .join(Tenant, Tenant.id == ApiKey.tenant_id)
        .where(ApiKey.prefix.in_(prefixes), ApiKey.revoked_at.is_(None))
    )


def keys_of(tenant_id: UUID | None) -> Select[ApiKey]:
    """A tenant's keys, revoked ones too; None: everybody's, for platform administrators."""
    query = select(ApiKey)
    return query if tenant_id is None else query.where(ApiKey.tenant_id == tenant_id)
