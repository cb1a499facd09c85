from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from gateway.admin.names import Draft, Name
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
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep, visible_tenant

router = APIRouter(prefix="/tenants", tags=["tenants"])


class TenantDraft(Draft):
    name: Name
    tier: Name
    is_local_only: bool = False
    """Never sent to a provider outside, whatever the pools are configured to do."""


class TenantChange(Draft):
    """A field that is not sent stays."""

    name: Name = ""
    tier: Name = ""
    is_suspended: bool = False
    is_local_only: bool = False


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
    """The operator's own, which can be neither suspended nor deleted."""


@router.post("", status_code=201)
async def post_tenant(draft: TenantDraft, admin: PlatformDep, sessions: SessionsDep) -> TenantView:
    return TenantView.model_validate(await create_tenant(sessions, admin, **draft.model_dump(), now=utc_now()))


@router.get("")
async def list_tenants(
    admin: AdminDep, sessions: SessionsDep, page: PageDep, with_deleted: bool = False
) -> Page[TenantView]:
    async with sessions() as session:
        query = tenants_visible_to(visible_tenant(admin), with_deleted=with_deleted)
        return await fetch_page(session, query, Tenant.id, page, TenantView.model_validate)


@router.get("/{tenant_id}")
async def show_tenant(tenant_id: UUID, admin: AdminDep, sessions: SessionsDep) -> TenantView:
    return TenantView.model_validate(await get_tenant(sessions, admin, tenant_id))


@router.patch("/{tenant_id}")
async def patch_tenant(tenant_id: UUID, change: TenantChange, admin: PlatformDep, services: ServicesDep) -> TenantView:
    tenant = await change_tenant(
        services.sessions, admin, tenant_id, **change.model_dump(exclude_unset=True), now=utc_now()
    )
    await services.reload()
    return TenantView.model_validate(tenant)


@router.delete("/{tenant_id}", status_code=204)
async def remove_tenant(tenant_id: UUID, admin: PlatformDep, services: ServicesDep) -> None:
    """Its keys stop working, its adapters go and its name is free again. Its usage stays for invoices."""
    await delete_tenant(services.sessions, admin, tenant_id, now=utc_now())
    await services.reload()
