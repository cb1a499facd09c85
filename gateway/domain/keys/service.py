from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.database import Sessions
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.queries import indispensable, usable_admin_keys
from gateway.domain.keys.secret import hash_key, lookup_prefix, make_key
from gateway.domain.limits import changed_limits
from gateway.domain.locks import take_lock
from gateway.domain.principal import Principal, Scope
from gateway.domain.tenants.models import Tenant
from gateway.domain.tenants.service import require_tenant
from gateway.domain.versions import check_version
from gateway.http.errors import Conflict, Forbidden, InvalidRequest, NotFound
from gateway.peppers import id_of
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
    terms: Mapping[str, Any] = MappingProxyType({}),
    pepper: str,
    now: datetime,
) -> tuple[ApiKey, str]:
    """Returns the stored key and the secret to show once. `tenant_id` None: the tenant administrator's own tenant.

    terms: further columns and their values, `limits` as `changed_limits` takes them.
    """
    if tenant_id is None:
        if principal.is_platform_admin:
            raise InvalidRequest("tenant_id: name the tenant that the key is for", param="tenant_id")
        tenant_id = principal.tenant_id
    principal.require_tenant(tenant_id)
    _check_scopes(principal, scopes)
    secret = make_key()
    key = _new_key(tenant_id, name, list(scopes), secret, pepper=pepper, now=now)
    _set_terms(key, terms, now=now)
    async with sessions.begin() as session:
        await require_tenant(session, tenant_id)
        session.add(key)
        await record(
            session,
            principal,
            "key.create",
            object_id=key.id,
            tenant_id=tenant_id,
            now=now,
            detail={"name": name, "scopes": list(scopes), **_shown(terms)},
            after=key,
        )
    return key, secret


async def change_key(
    sessions: Sessions,
    principal: Principal,
    key_id: UUID,
    changes: Mapping[str, Any],
    *,
    version: int | None = None,
    now: datetime,
) -> ApiKey:
    """`changes`: columns and their new values, `limits` as `changed_limits` takes them. Raises Conflict if nobody could
    administer the platform afterwards."""
    async with sessions.begin() as session:
        await take_lock(session, "admins")
        key = await _live_key(session, principal, key_id)
        check_version(key, version)
        scopes = changes.get("scopes", key.scopes)
        _check_scopes(principal, {*scopes, *key.scopes})
        confines = changes.get("expires_at") is not None or changes.get("allowed_networks") is not None
        if "platform-admin" not in scopes or confines:
            await _check_dispensable(session, key)
        before = shown(key)
        _set_terms(key, changes, now=now)
        await record(
            session,
            principal,
            "key.change",
            object_id=key_id,
            tenant_id=key.tenant_id,
            now=now,
            detail=_shown(changes),
            before=before,
            after=key,
        )
    return key


async def rotate_key(
    sessions: Sessions, principal: Principal, key_id: UUID, *, overlap: timedelta, pepper: str, now: datetime
) -> tuple[ApiKey, str, list[str]]:
    """Give the key a new secret. The previous secret works until the overlap ends; one before that ends at once.

    Returns the key, the new secret to show once, and the prefixes of the two earlier secrets.
    """
    secret = make_key()
    async with sessions.begin() as session:
        await take_lock(session, "admins")
        key = await _live_key(session, principal, key_id)
        _check_scopes(principal, key.scopes)
        before = shown(key)
        prefixes = [prefix for prefix in (key.prefix, key.previous_prefix) if prefix is not None]
        key.previous_prefix, key.previous_secret_hash, key.previous_until = key.prefix, key.secret_hash, now + overlap
        key.previous_pepper_id, key.pepper_id = key.pepper_id, id_of(pepper)
        key.prefix, key.secret_hash = lookup_prefix(secret), hash_key(secret, pepper=pepper)
        detail = {"previous_until": key.previous_until.isoformat()}
        await record(
            session,
            principal,
            "key.rotate",
            object_id=key_id,
            tenant_id=key.tenant_id,
            now=now,
            detail=detail,
            before=before,
            after=key,
        )
    return key, secret, prefixes


async def revoke_key(
    sessions: Sessions, principal: Principal, key_id: UUID, *, version: int | None = None, now: datetime
) -> ApiKey:
    """Idempotent: a revoked key keeps its first `revoked_at`. Raises Conflict for the last indispensable admin key."""
    async with sessions.begin() as session:
        await take_lock(session, "admins")
        key = await get_key(session, principal, key_id)
        if key.revoked_at is None:
            check_version(key, version)
            await _check_dispensable(session, key)
            before = shown(key)
            key.revoked_at = now
            await record(
                session,
                principal,
                "key.revoke",
                object_id=key_id,
                tenant_id=key.tenant_id,
                now=now,
                before=before,
                after=key,
            )
    return key


async def get_key(session: AsyncSession, principal: Principal, key_id: UUID) -> ApiKey:
    """The key, even if revoked. Raises NotFound, also for another tenant's key."""
    key = await session.get(ApiKey, key_id)
    if key is None:
        raise NotFound("there is no such key")
    principal.require_tenant(key.tenant_id)
    return key


async def bootstrap_admin_key(sessions: Sessions, secret: str, *, pepper: str, now: datetime) -> bool:
    """Give a database without any key its first platform administrator. False: there are keys already."""
    async with sessions.begin() as session:
        await take_lock(session, "admins")
        if await session.scalar(select(func.count()).select_from(ApiKey)):
            return False
        tenant = await _platform_tenant(session, now=now)
        key = _new_key(tenant.id, "bootstrap", ["platform-admin"], secret, pepper=pepper, now=now)
        session.add(key)
        await record(session, None, "key.bootstrap", object_id=key.id, tenant_id=tenant.id, now=now, after=key)
    return True


async def make_admin_key(sessions: Sessions, *, name: str, pepper: str, now: datetime) -> tuple[ApiKey, str]:
    """Make a platform-admin key for an operator who has the database. Returns the key and the secret to show once."""
    secret = make_key()
    async with sessions.begin() as session:
        await take_lock(session, "admins")
        tenant = await _platform_tenant(session, now=now)
        # The first version allowed suspending this tenant, and a key that is refused would help nobody.
        was_suspended, tenant.suspended_at = tenant.suspended_at is not None, None
        key = _new_key(tenant.id, name, ["platform-admin"], secret, pepper=pepper, now=now)
        session.add(key)
        detail = {"name": name, "scopes": key.scopes, "resumed_tenant": was_suspended}
        await record(
            session, None, "key.admin", object_id=key.id, tenant_id=tenant.id, now=now, detail=detail, after=key
        )
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


async def _live_key(session: AsyncSession, principal: Principal, key_id: UUID) -> ApiKey:
    key = await get_key(session, principal, key_id)
    if key.revoked_at is not None:
        raise Conflict("this key was revoked, which is for good; make another")
    return key


def _check_scopes(principal: Principal, scopes: Collection[str]) -> None:
    if "platform-admin" in scopes and not principal.is_platform_admin:
        raise Forbidden("platform-admin keys are a platform administrator's to make and to change")


def _set_terms(key: ApiKey, terms: Mapping[str, Any], *, now: datetime) -> None:
    expires_at = terms.get("expires_at")
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("expires_at: must be in the future; DELETE ends a key now", param="expires_at")
    for column, value in terms.items():
        setattr(key, column, changed_limits(key.limits, value) if column == "limits" else value)


def _shown(terms: Mapping[str, Any]) -> dict[str, Any]:
    """The terms as JSON values, for the audit log."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in terms.items()}


async def _check_dispensable(session: AsyncSession, key: ApiKey) -> None:
    """Raises Conflict for the last of the `indispensable` keys; `admins` must be locked."""
    usable = (await session.scalars(usable_admin_keys())).all()
    if {each.id for each in indispensable(usable)} == {key.id}:
        raise Conflict(
            "this is the last key that may administer the platform from every address; make another without "
            "expires_at and allowed_networks first, with POST /admin/v1/keys or `tiergate admin-key`"
        )


def _new_key(tenant_id: UUID, name: str, scopes: list[str], secret: str, *, pepper: str, now: datetime) -> ApiKey:
    return ApiKey(
        id=new_id(now),
        tenant_id=tenant_id,
        name=name,
        prefix=lookup_prefix(secret),
        secret_hash=hash_key(secret, pepper=pepper),
        pepper_id=id_of(pepper),
        scopes=scopes,
        created_at=now,
        revoked_at=None,
    )
