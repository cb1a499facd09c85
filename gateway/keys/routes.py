from uuid import UUID

from fastapi import APIRouter

from gateway.dependencies import AdminDep, ServicesDep, SessionsDep, visible_tenant
from gateway.identity import utc_now
from gateway.keys.models import ApiKey
from gateway.keys.queries import keys_of
from gateway.keys.schemas import KeyDraft, KeyView, NewKeyView
from gateway.keys.service import create_key, revoke_key
from gateway.pages import Page, PageDep, fetch_page

router = APIRouter(prefix="/keys", tags=["keys"])


@router.post("", status_code=201)
async def post_key(draft: KeyDraft, admin: AdminDep, services: ServicesDep) -> NewKeyView:
    pepper = services.settings.key_pepper.get_secret_value()
    key, secret = await create_key(services.sessions, admin, draft, pepper=pepper, now=utc_now())
    return NewKeyView(**KeyView.model_validate(key).model_dump(), key=secret)


@router.get("")
async def list_keys(admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[KeyView]:
    async with sessions() as session:
        return await fetch_page(session, keys_of(visible_tenant(admin)), ApiKey.id, page, KeyView.model_validate)


@router.delete("/{key_id}", status_code=204)
async def delete_key(key_id: UUID, admin: AdminDep, services: ServicesDep) -> None:
    await revoke_key(services.sessions, admin, key_id, now=utc_now())
    await services.reload()
