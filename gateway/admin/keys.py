from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.names import Draft, Id, Name
from gateway.clock import utc_now
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.queries import keys_of
from gateway.domain.keys.service import create_key, revoke_key
from gateway.domain.principal import Scope
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, ServicesDep, SessionsDep, visible_tenant

router = APIRouter(prefix="/keys", tags=["keys"])


class KeyDraft(Draft):
    """`tenant_id` may be left out by a tenant's own administrator, and by nobody else."""

    tenant_id: Id | None = None
    name: Name
    scopes: list[Scope] = Field(default=["inference"], min_length=1)


class KeyView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    tenant_id: UUID
    name: str
    prefix: str
    scopes: list[Scope]
    created_at: datetime
    revoked_at: datetime | None


class NewKeyView(KeyView):
    key: str
    """The key itself, shown this once."""


@router.post("", status_code=201)
async def post_key(draft: KeyDraft, admin: AdminDep, services: ServicesDep) -> NewKeyView:
    pepper = services.settings.key_pepper.get_secret_value()
    key, secret = await create_key(
        services.sessions,
        admin,
        tenant_id=draft.tenant_id,
        name=draft.name,
        scopes=draft.scopes,
        pepper=pepper,
        now=utc_now(),
    )
    return NewKeyView(**KeyView.model_validate(key).model_dump(), key=secret)


@router.get("")
async def list_keys(admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[KeyView]:
    async with sessions() as session:
        return await fetch_page(session, keys_of(visible_tenant(admin)), ApiKey.id, page, KeyView.model_validate)


@router.delete("/{key_id}", status_code=204)
async def delete_key(key_id: UUID, admin: AdminDep, services: ServicesDep) -> None:
    """Every gateway refuses it within two seconds. The last key that may administer the platform stays: 409."""
    await revoke_key(services.sessions, admin, key_id, now=utc_now())
    await services.reload()
