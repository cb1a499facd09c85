from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, Field

from gateway.admin.names import AdapterName, Draft, Id, ModelId, WorkerName
from gateway.clock import utc_now
from gateway.domain.adapters.models import Adapter
from gateway.domain.adapters.service import adapters_visible_to, create_adapter, delete_adapter
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, ServicesDep, SessionsDep, visible_tenant

router = APIRouter(prefix="/adapters", tags=["adapters"])


class AdapterDraft(Draft):
    """`variants`: base model id -> the adapter's name at that model's workers. `tenant_id` null: for everybody."""

    name: AdapterName
    variants: Annotated[dict[ModelId, WorkerName], Field(min_length=1)]
    tenant_id: Id | None = None


class AdapterView(BaseModel):
    id: UUID
    name: str
    tenant_id: UUID | None
    variants: dict[str, str]
    created_at: datetime

    @classmethod
    def of(cls, adapter: Adapter) -> "AdapterView":
        """`adapter.variants` must be loaded."""
        return cls(
            id=adapter.id,
            name=adapter.name,
            tenant_id=adapter.tenant_id,
            variants={variant.model_id: variant.worker_name for variant in adapter.variants},
            created_at=adapter.created_at,
        )


@router.post("", status_code=201)
async def post_adapter(draft: AdapterDraft, admin: AdminDep, services: ServicesDep) -> AdapterView:
    pools = services.registry.fleet.pools.values()
    adapter = await create_adapter(
        services.sessions,
        admin,
        **draft.model_dump(),
        served_names={name for pool in pools for name in (pool.name, pool.model_id)},
        now=utc_now(),
    )
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
