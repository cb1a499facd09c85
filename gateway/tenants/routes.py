from uuid import UUID

from fastapi import APIRouter

from gateway.dependencies import AdminDep, PlatformDep, ServicesDep, SessionsDep, visible_tenant
from gateway.identity import utc_now
from gateway.pages import Page, PageDep, fetch_page
from gateway.tenants.models import Tenant
from gateway.tenants.schemas import TenantChange, TenantDraft, TenantView
from gateway.tenants.service import change_tenant, create_tenant, get_tenant, tenants_visible_to

router = APIRouter(prefix="/tenants", tags=["tenants"])


@router.post("", status_code=201)
async def post_tenant(draft: TenantDraft, admin: PlatformDep, sessions: SessionsDep) -> TenantView:
    return TenantView.model_validate(await create_tenant(sessions, admin, draft, now=utc_now()))


@router.get("")
async def list_tenants(admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[TenantView]:
    async with sessions() as session:
        query = tenants_visible_to(visible_tenant(admin))
        return await fetch_page(session, query, Tenant.id, page, TenantView.model_validate)


@router.get("/{tenant_id}")
async def show_tenant(tenant_id: UUID, admin: AdminDep, sessions: SessionsDep) -> TenantView:
    return TenantView.model_validate(await get_tenant(sessions, admin, tenant_id))


@router.patch("/{tenant_id}")
async def patch_tenant(tenant_id: UUID, change: TenantChange, admin: PlatformDep, services: ServicesDep) -> TenantView:
    tenant = await change_tenant(services.sessions, admin, tenant_id, change, now=utc_now())
    await services.reload()
    return TenantView.model_validate(tenant)
