"""`/admin/v1/users`: limits of single end users of a tenant, each named by the `user` of their requests."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from gateway.admin.etags import IfMatchDep, TaggedRoute, seen_version
from gateway.admin.limit_fields import UserLimits
from gateway.admin.names import Draft, Id, UserId, Version
from gateway.clock import utc_now
from gateway.domain.tenants.end_users import (
    change_end_user,
    create_end_user,
    delete_end_user,
    end_users_of,
    get_end_user,
)
from gateway.domain.tenants.models import EndUser
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, ServicesDep, SessionsDep, asked_tenant

router = APIRouter(prefix="/users", tags=["users"], route_class=TaggedRoute)


class EndUserDraft(Draft):
    tenant_id: Id | None = None
    """Defaults to the key's own tenant."""
    user_id: UserId
    limits: UserLimits


class EndUserChange(Draft):
    limits: UserLimits | None
    """A null limit reverts to the tenant's `user_limits`; null for the whole object reverts all of them."""
    version: Version | None = None


class EndUserView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    tenant_id: UUID
    user_id: str
    limits: dict[str, int]
    """These override the tenant's `user_limits`."""
    created_at: datetime
    version: int


@router.post("", status_code=201)
async def post_user(draft: EndUserDraft, admin: AdminDep, services: ServicesDep) -> EndUserView:
    user = await create_end_user(
        services.sessions,
        admin,
        tenant_id=draft.tenant_id or admin.tenant_id,
        user_id=draft.user_id,
        limits=draft.limits.model_dump(exclude_unset=True),
        now=utc_now(),
    )
    await services.reload()
    return EndUserView.model_validate(user)


@router.get("")
async def list_users(
    admin: AdminDep,
    sessions: SessionsDep,
    page: PageDep,
    tenant_id: UUID | None = None,
    user_id: Annotated[str | None, Query(max_length=512)] = None,
) -> Page[EndUserView]:
    query = end_users_of(asked_tenant(admin, tenant_id))
    if user_id is not None:
        query = query.where(EndUser.user_id == user_id)
    async with sessions() as session:
        return await fetch_page(session, query, EndUser.id, page, EndUserView.model_validate)


@router.get("/{user_row_id}")
async def show_user(user_row_id: UUID, admin: AdminDep, sessions: SessionsDep) -> EndUserView:
    async with sessions() as session:
        return EndUserView.model_validate(await get_end_user(session, admin, user_row_id))


@router.patch("/{user_row_id}")
async def patch_user(
    user_row_id: UUID,
    change: EndUserChange,
    admin: AdminDep,
    services: ServicesDep,
    if_match: IfMatchDep = None,
) -> EndUserView:
    version = seen_version(if_match, change.version)
    limits = None if change.limits is None else change.limits.model_dump(exclude_unset=True)
    user = await change_end_user(services.sessions, admin, user_row_id, limits, version=version, now=utc_now())
    await services.reload()
    return EndUserView.model_validate(user)


@router.delete("/{user_row_id}", status_code=204)
async def remove_user(user_row_id: UUID, admin: AdminDep, services: ServicesDep, if_match: IfMatchDep = None) -> None:
    """Remove an end user's own limits; the tenant's `user_limits` apply again."""
    await delete_end_user(services.sessions, admin, user_row_id, version=if_match, now=utc_now())
    await services.reload()
