import os
from datetime import datetime
from typing import Literal
from uuid import UUID

from gateway.database import Sessions
from gateway.domain import sealing
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.principal import Principal
from gateway.domain.sessions.models import SessionPolicy
from gateway.domain.sessions.terms import PURPOSE, SessionTerms
from gateway.domain.tenants.service import require_tenant
from gateway.domain.versions import check_version, edit_of_maybe_none

Overflow = Literal["window", "summary"]


async def read_policy(sessions: Sessions, principal: Principal, tenant_id: UUID) -> SessionTerms:
    """Raises NotFound."""
    principal.require_tenant(tenant_id)
    async with sessions() as session:
        await require_tenant(session, tenant_id)
        policy = await session.get(SessionPolicy, tenant_id)
    return SessionTerms() if policy is None else terms_of(policy)


async def change_policy(
    sessions: Sessions,
    principal: Principal,
    tenant_id: UUID,
    *,
    overflow: Overflow | None = None,
    is_encrypted: bool | None = None,
    version: int | None = None,
    pepper: str,
    now: datetime,
) -> SessionTerms:
    """Settings that are None stay as they are. Raises NotFound or Stale."""
    principal.require_tenant(tenant_id)
    async with edit_of_maybe_none(sessions) as session:
        await require_tenant(session, tenant_id)
        policy = await session.get(SessionPolicy, tenant_id, with_for_update=True)
        check_version(policy, version)
        before = None if policy is None else shown(policy)
        if policy is None:
            policy = SessionPolicy(tenant_id=tenant_id, overflow="window", is_encrypted=False, changed_at=now)
            session.add(policy)
        if overflow is not None:
            policy.overflow = overflow
        if is_encrypted is not None:
            policy.is_encrypted = is_encrypted
            if is_encrypted and policy.sealed_key is None:
                policy.sealed_key = sealing.seal(
                    os.urandom(sealing.KEY_BYTES), purpose=PURPOSE, bound_to=tenant_id.bytes, pepper=pepper
                )
        policy.changed_at = now
        given = {"overflow": overflow, "is_encrypted": is_encrypted}
        detail = {name: value for name, value in given.items() if value is not None}
        await record(
            session,
            principal,
            "sessions.change",
            object_id=tenant_id,
            tenant_id=tenant_id,
            now=now,
            detail=detail,
            before=before,
            after=policy,
        )
    return terms_of(policy)


def terms_of(policy: SessionPolicy) -> SessionTerms:
    return SessionTerms(policy.overflow, policy.is_encrypted, policy.sealed_key, policy.version)
