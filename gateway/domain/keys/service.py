from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select

from gateway.database import Sessions
from gateway.domain.audit.service import record
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.secret import hash_key, lookup_prefix, make_key
from gateway.domain.principal import Principal, Scope
from gateway.domain.tenants.models import Tenant
from gateway.domain.tenants.service import require_tenant
from gateway.http.errors import Forbidden, NotFound
from protocol.ids import new_id

PLATFORM_TENANT = "platform"
PLATFORM_TIER = "enterprise"


async def create_key(
    sessions: Sessions,
    principal: Principal,
    *,
    tenant_id: UUID | None,
    name: str,
    scopes: Sequence[Scope],
    pepper: str,
    now: datetime,
) -> tuple[ApiKey, str]:
    """The stored key and the secret to show once. `tenant_id` None: the administrator's own."""
    tenant_id = tenant_id or principal.tenant_id
    principal.require_tenant(tenant_id)
    if "platform-admin" in scopes and not principal.is_platform_admin:
        raise Forbidden("only a platform administrator can make a platform-admin key")
    secret = make_key()
    key = _new_key(tenant_id, name, list(scopes), secret, pepper=pepper, now=now)
    async with sessions.begin() as session:
        await require_tenant(session, tenant_id)
        session.add(key)
        record(
            session,
            principal,
            "key.create",
            object_id=key.id,
            tenant_id=tenant_id,
            now=now,
            detail={"name": name, "scopes": list(scopes)},
        )
    return key, secret


async def revoke_key(sessions: Sessions, principal: Principal, key_id: UUID, *, now: datetime) -> None:
    """Idempotent: a revoked key stays revoked since the first time."""
    async with sessions.begin() as session:
        key = await session.get(ApiKey, key_id)
        if key is None:
            raise NotFound("there is no such key")
        principal.require_tenant(key.tenant_id)
        if key.revoked_at is None:
            key.revoked_at = now
            record(session, principal, "key.revoke", object_id=key_id, tenant_id=key.tenant_id, now=now)


async def bootstrap_admin_key(sessions: Sessions, secret: str, *, pepper: str, now: datetime) -> bool:
    """Give a database without any key its first platform administrator. False: there are keys already."""
    async with sessions.begin() as session:
        if await session.scalar(select(func.count()).select_from(ApiKey)):
            return False
        tenant = await session.scalar(select(Tenant).where(Tenant.name == PLATFORM_TENANT))
        if tenant is None:
            tenant = Tenant(id=new_id(now), name=PLATFORM_TENANT, tier=PLATFORM_TIER, created_at=now, suspended_at=None)
            session.add(tenant)
            await session.flush()
        key = _new_key(tenant.id, "bootstrap", ["platform-admin"], secret, pepper=pepper, now=now)
        session.add(key)
        record(session, None, "key.bootstrap", object_id=key.id, tenant_id=tenant.id, now=now)
    return True


def _new_key(tenant_id: UUID, name: str, scopes: list[str], secret: str, *, pepper: str, now: datetime) -> ApiKey:
    return ApiKey(
        id=new_id(now),
        tenant_id=tenant_id,
        name=name,
        prefix=lookup_prefix(secret),
        secret_hash=hash_key(secret, pepper=pepper),
        scopes=scopes,
        created_at=now,
        revoked_at=None,
    )
