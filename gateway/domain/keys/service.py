from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.service import record
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.queries import usable_admin_keys
from gateway.domain.keys.secret import hash_key, lookup_prefix, make_key
from gateway.domain.locks import take_lock
from gateway.domain.principal import Principal, Scope
from gateway.domain.tenants.models import Tenant
from gateway.domain.tenants.service import require_tenant
from gateway.http.errors import Conflict, Forbidden, InvalidRequest, NotFound
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
    """The stored key and the secret to show once. `tenant_id` None: a tenant administrator's own."""
    if tenant_id is None:
        if principal.is_platform_admin:
            raise InvalidRequest("tenant_id: name the tenant that the key is for", param="tenant_id")
        tenant_id = principal.tenant_id
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
    """Idempotent: a revoked key stays revoked since the first time. Raises Conflict for the last administrator's."""
    async with sessions.begin() as session:
        await take_lock(session, "admins")
        key = await session.get(ApiKey, key_id)
        if key is None:
            raise NotFound("there is no such key")
        principal.require_tenant(key.tenant_id)
        if key.revoked_at is None:
            await _check_dispensable(session, key)
            key.revoked_at = now
            record(session, principal, "key.revoke", object_id=key_id, tenant_id=key.tenant_id, now=now)


async def bootstrap_admin_key(sessions: Sessions, secret: str, *, pepper: str, now: datetime) -> bool:
    """Give a database without any key its first platform administrator. False: there are keys already."""
    async with sessions.begin() as session:
        await take_lock(session, "admins")
        if await session.scalar(select(func.count()).select_from(ApiKey)):
            return False
        tenant = await _platform_tenant(session, now=now)
        key = _new_key(tenant.id, "bootstrap", ["platform-admin"], secret, pepper=pepper, now=now)
        session.add(key)
        record(session, None, "key.bootstrap", object_id=key.id, tenant_id=tenant.id, now=now)
    return True


async def make_admin_key(sessions: Sessions, *, name: str, pepper: str, now: datetime) -> tuple[ApiKey, str]:
    """A new platform-admin key for whoever has the database: the stored key and the secret to show once."""
    secret = make_key()
    async with sessions.begin() as session:
        await take_lock(session, "admins")
        tenant = await _platform_tenant(session, now=now)
        # The first version let it be suspended; a key that is refused would help nobody.
        was_suspended, tenant.suspended_at = tenant.suspended_at is not None, None
        key = _new_key(tenant.id, name, ["platform-admin"], secret, pepper=pepper, now=now)
        session.add(key)
        detail = {"name": name, "scopes": key.scopes, "resumed_tenant": was_suspended}
        record(session, None, "key.admin", object_id=key.id, tenant_id=tenant.id, now=now, detail=detail)
    return key, secret


async def _platform_tenant(session: AsyncSession, *, now: datetime) -> Tenant:
    tenant = await session.scalar(select(Tenant).where(Tenant.is_platform).order_by(Tenant.id).limit(1))
    if tenant is None:
        made_id = new_id(now)
        live = Tenant.name == PLATFORM_TENANT, Tenant.deleted_at.is_(None)
        is_taken = await session.scalar(select(Tenant.id).where(*live)) is not None
        name = f"{PLATFORM_TENANT} {made_id}" if is_taken else PLATFORM_TENANT
        tenant = Tenant(id=made_id, name=name, tier=PLATFORM_TIER, created_at=now, is_platform=True)
        session.add(tenant)
        await session.flush()
    return tenant


async def _check_dispensable(session: AsyncSession, key: ApiKey) -> None:
    """Raises Conflict for the last key that may administer the platform; `admins` must be locked."""
    usable = {each.id for each in await session.scalars(usable_admin_keys())}
    if usable == {key.id}:
        raise Conflict(
            "this is the last key that may administer the platform; make another first, with POST /admin/v1/keys or "
            "`tiergate admin-key`"
        )


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
