"""`/admin/v1/tenants/{tenant_id}/sessions`: a tenant's settings for its sessions."""

from typing import Literal
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from gateway.admin.etags import IfMatchDep, TaggedRoute, seen_version
from gateway.admin.names import Draft, Version
from gateway.clock import utc_now
from gateway.domain.sessions.service import change_policy, read_policy
from gateway.services import AdminDep, ServicesDep, SessionsDep

router = APIRouter(prefix="/tenants/{tenant_id}/sessions", tags=["tenants"], route_class=TaggedRoute)


class SessionPolicyChange(Draft):
    """Fields that are not sent keep their values."""

    overflow: Literal["window", "summary"] = "window"
    """What happens to turns that leave the window: `window` forgets them, `summary` has the small model sum them up."""
    is_encrypted: bool = False
    """Everything written from now on is sealed under a key of the tenant's own."""
    version: Version | None = None


class SessionPolicyView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    overflow: str
    is_encrypted: bool
    version: int
    """0 until the policy is first changed."""


@router.get("")
async def show_policy(tenant_id: UUID, admin: AdminDep, sessions: SessionsDep) -> SessionPolicyView:
    return SessionPolicyView.model_validate(await read_policy(sessions, admin, tenant_id))


@router.patch("")
async def patch_policy(
    tenant_id: UUID,
    change: SessionPolicyChange,
    admin: AdminDep,
    services: ServicesDep,
    if_match: IfMatchDep = None,
) -> SessionPolicyView:
    policy = await change_policy(
        services.sessions,
        admin,
        tenant_id,
        **change.model_dump(exclude_unset=True, exclude={"version"}),
        version=seen_version(if_match, change.version),
        pepper=services.settings.peppers.current,
        now=utc_now(),
    )
    await services.reload()
    return SessionPolicyView.model_validate(policy)
