from collections.abc import Collection
from typing import Any
from uuid import UUID

from sqlalchemy import Select, Text, cast, select

from gateway.domain.keys.models import ApiKey
from gateway.domain.tenants.models import Tenant


def live_keys(prefixes: Collection[str]) -> Select[ApiKey, Tenant]:
    """Across tenants: at this point the key is all we know of the caller."""
    return (
        select(ApiKey, Tenant)
        .join(Tenant, Tenant.id == ApiKey.tenant_id)
        .where(ApiKey.prefix.in_(prefixes), ApiKey.revoked_at.is_(None), Tenant.deleted_at.is_(None))
    )


def key_rows(prefixes: Collection[str]) -> Select[*tuple[Any, ...]]:
    """What the keyring holds of `live_keys`: prefix, secret hash, key id, scopes, and the tenant's id, name, tier and
    `suspended_at` and `is_local_only`. Columns alone, because thousands are read every second."""
    return live_keys(prefixes).with_only_columns(
        ApiKey.prefix,
        ApiKey.secret_hash,
        ApiKey.id,
        ApiKey.scopes,
        Tenant.id,
        Tenant.name,
        Tenant.tier,
        Tenant.suspended_at,
        Tenant.is_local_only,
    )


def usable_admin_keys() -> Select[ApiKey]:
    """Platform-admin keys that are let in: not revoked, of a tenant neither suspended nor deleted."""
    return (
        select(ApiKey)
        .join(Tenant, Tenant.id == ApiKey.tenant_id)
        .where(
            ApiKey.revoked_at.is_(None),
            Tenant.suspended_at.is_(None),
            Tenant.deleted_at.is_(None),
            cast(ApiKey.scopes, Text).contains('"platform-admin"'),
        )
    )


def keys_of(tenant_id: UUID | None) -> Select[ApiKey]:
    """A tenant's keys, revoked ones too; None: everybody's, for platform administrators."""
    query = select(ApiKey)
    return query if tenant_id is None else query.where(ApiKey.tenant_id == tenant_id)
