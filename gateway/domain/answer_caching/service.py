from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from gateway.database import Sessions
from gateway.domain.answer_caching.models import CachePolicy
from gateway.domain.answer_caching.terms import CacheTerms
from gateway.domain.audit.fields import shown
from gateway.domain.audit.service import record
from gateway.domain.principal import Principal
from gateway.domain.tenants.service import require_tenant
from gateway.domain.versions import check_version, edit_of_maybe_none


async def read_cache_policy(sessions: Sessions, principal: Principal, tenant_id: UUID) -> CacheTerms:
    """Raises NotFound."""
    principal.require_tenant(tenant_id)
    async with sessions() as session:
        await require_tenant(session, tenant_id)
        policy = await session.get(CachePolicy, tenant_id)
    return CacheTerms() if policy is None else terms_of(policy)


async def change_cache_policy(
    sessions: Sessions,
    principal: Principal,
    tenant_id: UUID,
    changes: Mapping[str, Any],
    *,
    version: int | None = None,
    now: datetime,
) -> CacheTerms:
    """`changes`: fields of `CacheTerms` and their new values. Raises NotFound or Stale."""
    principal.require_tenant(tenant_id)
    async with edit_of_maybe_none(sessions) as session:
        await require_tenant(session, tenant_id)
        policy = await session.get(CachePolicy, tenant_id, with_for_update=True)
        check_version(policy, version)
        before = None if policy is None else shown(policy)
        if policy is None:
            policy = CachePolicy(tenant_id=tenant_id, **_DEFAULTS)
            session.add(policy)
        for name, value in changes.items():
            setattr(policy, name, value)
        policy.changed_at = now
        await record(
            session,
            principal,
            "cache.change",
            object_id=tenant_id,
            tenant_id=tenant_id,
            now=now,
            detail=dict(changes),
            before=before,
            after=policy,
        )
    return terms_of(policy)


async def record_purge(
    sessions: Sessions, principal: Principal, tenant_id: UUID, *, num_answers: int, now: datetime
) -> None:
    async with sessions.begin() as session:
        detail = {"num_answers": num_answers}
        await record(
            session, principal, "cache.purge", object_id=tenant_id, tenant_id=tenant_id, now=now, detail=detail
        )


def terms_of(policy: CachePolicy) -> CacheTerms:
    return CacheTerms(**{name: getattr(policy, name) for name in (*_DEFAULTS, "version")})


_NONE = CacheTerms()
_DEFAULTS = {name: getattr(_NONE, name) for name in ("mode", "is_default", "ttl_s", "min_similarity", "takes_sampled")}
