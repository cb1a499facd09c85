"""Suspending, resuming and deleting a tenant, each after a confirmation."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.tenants import TenantChange, patch_tenant, remove_tenant, show_tenant
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.links import path_id
from gateway.dashboard.pages import OPERATORS, FormPage
from gateway.dashboard.tenants.listing import PATH
from gateway.dashboard.typed import Typed
from gateway.dashboard.visitors import Visitor
from gateway.services import Services

_SUSPEND = "Its keys are refused until it is resumed. Nothing is deleted, and requests under way are finished."
_RESUME = "Its keys are let in again."
_DELETE = (
    "Its keys end for good, its adapters, files, tools and webhooks are deleted, and its name is free again. "
    "Its usage and its invoices stay. This cannot be taken back."
)


async def ask_suspend(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return await _ask(request, services, visitor, typed, verb="Suspend", text=_SUSPEND)


async def ask_resume(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return await _ask(request, services, visitor, typed, verb="Resume", text=_RESUME)


async def ask_delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return await _ask(request, services, visitor, typed, verb="Delete", text=_DELETE)


async def suspend(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return await _suspend(request, services, visitor, is_suspended=True)


async def resume(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return await _suspend(request, services, visitor, is_suspended=False)


async def delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    tenant_id = path_id(request, "tenant_id")
    await remove_tenant(tenant_id, visitor.principal, services)
    return back_to(f"{PATH}/{tenant_id}", "tenant-deleted")


async def _suspend(request: Request, services: Services, visitor: Visitor, *, is_suspended: bool) -> Response:
    tenant_id = path_id(request, "tenant_id")
    await patch_tenant(tenant_id, TenantChange(is_suspended=is_suspended), visitor.principal, services)
    return back_to(f"{PATH}/{tenant_id}", "tenant-suspended" if is_suspended else "tenant-resumed")


async def _ask(
    request: Request, services: Services, visitor: Visitor, typed: Typed, *, verb: str, text: str
) -> Response:
    tenant = await show_tenant(path_id(request, "tenant_id"), visitor.principal, services.sessions)
    return confirmation(
        visitor,
        typed,
        title=f"{verb} {tenant.name}?",
        text=text,
        button=f"{verb} the tenant",
        back=f"{PATH}/{tenant.id}",
        back_label="Back",
    )


PAGES = (
    FormPage("/tenants/{tenant_id}/suspend", ask_suspend, suspend, who=OPERATORS),
    FormPage("/tenants/{tenant_id}/resume", ask_resume, resume, who=OPERATORS),
    FormPage("/tenants/{tenant_id}/delete", ask_delete, delete, who=OPERATORS),
)
