"""What routes ask FastAPI for."""

from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request

from gateway.database import Sessions
from gateway.principal import Principal
from gateway.services import Services


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def sessions(found: "ServicesDep") -> Sessions:
    return found.sessions


async def authenticated(request: Request, found: "ServicesDep") -> Principal:
    return await found.keyring.authenticate(request.headers.get("authorization"))


async def tenant_admin(principal: "PrincipalDep") -> Principal:
    principal.require("tenant-admin", "platform-admin")
    return principal


async def platform_admin(principal: "PrincipalDep") -> Principal:
    principal.require("platform-admin")
    return principal


def visible_tenant(principal: Principal) -> UUID | None:
    """Whose rows an administrator may list: its own tenant's, or (None) everybody's."""
    return None if principal.is_platform_admin else principal.tenant_id


ServicesDep = Annotated[Services, Depends(services)]
SessionsDep = Annotated[Sessions, Depends(sessions)]
PrincipalDep = Annotated[Principal, Depends(authenticated)]
AdminDep = Annotated[Principal, Depends(tenant_admin)]
PlatformDep = Annotated[Principal, Depends(platform_admin)]
