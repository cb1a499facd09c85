from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from gateway.domain.audit.models import AuditEntry
from gateway.domain.audit.service import entries_of
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, SessionsDep, visible_tenant

router = APIRouter(prefix="/audit", tags=["audit"])


class AuditView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    at: datetime
    actor_key_id: UUID | None
    tenant_id: UUID | None
    action: str
    object_id: str
    detail: dict[str, Any]


@router.get("")
async def list_entries(admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[AuditView]:
    async with sessions() as session:
        query = entries_of(visible_tenant(admin))
        return await fetch_page(session, query, AuditEntry.id, page, AuditView.model_validate)
