from uuid import UUID

from fastapi import APIRouter

from gateway.adapters.models import Adapter
from gateway.adapters.schemas import AdapterDraft, AdapterView
from gateway.adapters.service import adapters_visible_to, create_adapter, delete_adapter
from gateway.dependencies import AdminDep, ServicesDep, SessionsDep, visible_tenant
from gateway.identity import utc_now
from gateway.pages import Page, PageDep, fetch_page

router = APIRouter(prefix="/adapters", tags=["adapters"])


@router.post("", status_code=201)
async def post_adapter(draft: AdapterDraft, admin: AdminDep, services: ServicesDep) -> AdapterView:
    adapter = await create_adapter(services.sessions, admin, draft, now=utc_now())
    await services.reload()
    return AdapterView.of(adapter)


@router.get("")
async def list_adapters(admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[AdapterView]:
    async with sessions() as session:
        query = adapters_visible_to(visible_tenant(admin))
        return await fetch_page(session, query, Adapter.id, page, AdapterView.of)


@router.delete("/{adapter_id}", status_code=204)
async def remove_adapter(adapter_id: UUID, admin: AdminDep, services: ServicesDep) -> None:
    await delete_adapter(services.sessions, admin, adapter_id, now=utc_now())
    await services.reload()
