import contextlib
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from gateway.admin.etags import IfMatchDep, TaggedRoute, seen_version
from gateway.admin.limit_fields import TenantLimits, UserLimits
from gateway.admin.names import Draft, Name, Version
from gateway.clock import utc_now
from gateway.domain.tenants.models import Tenant
from gateway.domain.tenants.service import (
    change_tenant,
    create_tenant,
    delete_tenant,
    get_tenant,
    tenants_visible_to,
)
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.redis_client import AWAY
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep, visible_tenant

router = APIRouter(prefix="/tenants", tags=["tenants"], route_class=TaggedRoute)


class TenantDraft(Draft):
    name: Name
    tier: Name
    is_local_only: bool = False
    """Requests are never sent to an external provider, whatever the pools are configured to do."""
    limits: TenantLimits | None = None
    """These override the tier's limits."""
    user_limits: UserLimits | None = None
    """Limits of each end user, named by the `user` of requests; `/admin/v1/users` sets those of single users."""


class TenantChange(Draft):
    """Fields that are not sent keep their values. A tenant's own administrator may change only `user_limits`."""

    name: Name = ""
    tier: Name = ""
    is_suspended: bool = False
    is_local_only: bool = False
    limits: TenantLimits | None = None
    """These override the tier's limits. A null limit reverts to the tier's; null for the whole object reverts all."""
    user_limits: UserLimits | None = None
    version: Version | None = None


class TenantView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    name: str
    tier: str
    created_at: datetime
    suspended_at: datetime | None
    deleted_at: datetime | None
    is_local_only: bool
    is_platform: bool
    """The operator's own tenant, which can be neither suspended nor deleted."""
    version: int
    limits: dict[str, int] | None
    """The limits that override the tier's."""
    user_limits: dict[str, int] | None


@router.post("", status_code=201)
async def post_tenant(draft: TenantDraft, admin: PlatformDep, services: ServicesDep) -> TenantView:
    tenant = await create_tenant(services.sessions, admin, **draft.model_dump(exclude_none=True), now=utc_now())
    if tenant.limits or tenant.user_limits:
        await services.reload()
    return TenantView.model_validate(tenant)


@router.get("")
async def list_tenants(
    admin: AdminDep,
    sessions: SessionsDep,
    page: PageDep,
    with_deleted: bool = False,
    name: Annotated[str | None, Query(max_length=200)] = None,
    tier: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[TenantView]:
    async with sessions() as session:
        query = tenants_visible_to(visible_tenant(admin), with_deleted=with_deleted)
        if name is not None:
            query = query.where(Tenant.name == name)
        if tier is not None:
            query = query.where(Tenant.tier == tier)
        return await fetch_page(session, query, Tenant.id, page, TenantView.model_validate)


@router.get("/{tenant_id}")
async def show_tenant(tenant_id: UUID, admin: AdminDep, sessions: SessionsDep) -> TenantView:
    return TenantView.model_validate(await get_tenant(sessions, admin, tenant_id))


@router.patch("/{tenant_id}")
async def patch_tenant(
    tenant_id: UUID,
    change: TenantChange,
    admin: AdminDep,
    services: ServicesDep,
    if_match: IfMatchDep = None,
) -> TenantView:
    fields = change.model_dump(exclude_unset=True, exclude={"version"})
    version = seen_version(if_match, change.version)
    changed = {name: fields.pop(name) for name in list(fields) if name in ("limits", "user_limits")}
    tenant = await change_tenant(
        services.sessions, admin, tenant_id, **fields, changed=changed, version=version, now=utc_now()
    )
    await services.reload()
    return TenantView.model_validate(tenant)


@router.delete("/{tenant_id}", status_code=204)
async def remove_tenant(
    tenant_id: UUID, admin: PlatformDep, services: ServicesDep, if_match: IfMatchDep = None
) -> None:
    """Delete a tenant; platform administrators only.

    Its keys stop working, its adapters are removed and its name becomes free. Its usage is kept for invoices. 409 for
    the platform's own tenant, and if no key that may administer the platform would be left.
    """
    await delete_tenant(services.sessions, admin, tenant_id, version=if_match, now=utc_now())
    await services.reload()
    with contextlib.suppress(*AWAY):
        # While Redis is away the cached answers stay until their TTL ends, but nobody has a key to read them.
        await services.answer_cache.purge(str(tenant_id))
