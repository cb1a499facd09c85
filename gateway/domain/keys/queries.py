from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CompoundSelect, Select, Text, cast, null, select, type_coerce, union_all

from gateway.domain.keys.models import ApiKey
from gateway.domain.tenants.models import Tenant

KeyRow = tuple[Any, ...]


def key_of(key_id: UUID, prefix: str, *, now: datetime) -> Select[KeyRow]:
    """The key, if it and its secret with this prefix are still accepted."""
    live = _live(ApiKey.prefix, ApiKey.secret_hash, ApiKey.pepper_id, null()).where(ApiKey.id == key_id)
    is_previous = (ApiKey.previous_prefix == prefix) & (ApiKey.previous_until > now)
    is_unexpired = ApiKey.expires_at.is_(None) | (ApiKey.expires_at > now)
    return live.where(is_unexpired, (ApiKey.prefix == prefix) | is_previous)


def key_rows(prefixes: Collection[str]) -> CompoundSelect[KeyRow]:
    """The fields that the keyring holds of keys with one of these prefixes, current or from before the last rotation.

    Across tenants, because here the key is all we know of the caller. Plain columns, because thousands of rows are
    read every second.
    """
    current = _live(ApiKey.prefix, ApiKey.secret_hash, ApiKey.pepper_id, null()).where(ApiKey.prefix.in_(prefixes))
    previous = _live(
        ApiKey.previous_prefix, ApiKey.previous_secret_hash, ApiKey.previous_pepper_id, ApiKey.previous_until
    )
    return union_all(current, previous.where(ApiKey.previous_prefix.in_(prefixes)))


def _live(prefix: Any, secret_hash: Any, pepper_id: Any, until: Any) -> Select[KeyRow]:
    """Keys not revoked, of tenants not deleted; columns in the order of `KeyFields`."""
    return (
        select(
            prefix,
            secret_hash,
            pepper_id,
            type_coerce(until, ApiKey.previous_until.type),
            ApiKey.expires_at,
            ApiKey.id,
            ApiKey.scopes,
            ApiKey.allowed_models,
            ApiKey.allowed_networks,
            ApiKey.limits,
            Tenant.id,
            Tenant.name,
            Tenant.tier,
            Tenant.suspended_at,
            Tenant.is_local_only,
        )
        .join(Tenant, Tenant.id == ApiKey.tenant_id)
        .where(ApiKey.revoked_at.is_(None), Tenant.deleted_at.is_(None))
    )


def usable_admin_keys() -> Select[ApiKey]:
    """Platform-admin keys that work indefinitely: not revoked, never expiring, of a tenant neither suspended nor
    deleted."""
    return (
        select(ApiKey)
        .join(Tenant, Tenant.id == ApiKey.tenant_id)
        .where(
            ApiKey.revoked_at.is_(None),
            ApiKey.expires_at.is_(None),
            Tenant.suspended_at.is_(None),
            Tenant.deleted_at.is_(None),
            cast(ApiKey.scopes, Text).contains('"platform-admin"'),
        )
    )


def indispensable(usable: Sequence[ApiKey]) -> list[ApiKey]:
    """The usable admin keys of which at least one must stay. A key confined to networks may let nobody in, so it counts
    only if all keys are confined."""
    return [key for key in usable if key.allowed_networks is None] or list(usable)


def keys_of(tenant_id: UUID | None) -> Select[ApiKey]:
    """A tenant's keys, including revoked ones; None: everybody's, for platform administrators."""
    query = select(ApiKey)
    return query if tenant_id is None else query.where(ApiKey.tenant_id == tenant_id)
