"""A tenant's settings for its sessions, changed by its administrators and the platform's."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.sessions import SessionPolicyChange, SessionPolicyView, patch_policy, show_policy
from gateway.admin.tenants import TenantView
from gateway.dashboard.forms import back_to
from gateway.dashboard.pages import ADMINS, FormPage
from gateway.dashboard.rendering import render
from gateway.dashboard.tenants.listing import PATH
from gateway.dashboard.tenants.making import live_tenant
from gateway.dashboard.typed import CHECKED, Form, Standing, Typed, changed_fields
from gateway.dashboard.visitors import Visitor
from gateway.services import Services

OVERFLOWS = (("window", "are forgotten"), ("summary", "are summed up by the small model"))


async def show_sessions(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    tenant, policy = await _asked(request, services, visitor)
    return render(
        "tenants/sessions.html",
        visitor=visitor,
        tenant=tenant,
        form=Form(typed, _standing(policy)),
        overflows=OVERFLOWS,
        back=f"{PATH}/{tenant.id}",
    )


async def change(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    tenant, policy = await _asked(request, services, visitor)
    changed = changed_fields(typed, _standing(policy))
    read = {"overflow": typed.text("overflow"), "is_encrypted": typed.is_checked("is_encrypted")}
    if fields := {name: value for name, value in read.items() if name in changed}:
        draft = SessionPolicyChange.model_validate({**fields, "version": policy.version})
        await patch_policy(tenant.id, draft, visitor.principal, services)
    return back_to(f"{PATH}/{tenant.id}", "saved")


async def _asked(request: Request, services: Services, visitor: Visitor) -> tuple[TenantView, SessionPolicyView]:
    tenant = await live_tenant(request, services, visitor)
    return tenant, await show_policy(tenant.id, visitor.principal, services.sessions)


def _standing(policy: SessionPolicyView) -> Standing:
    return {"overflow": policy.overflow, "is_encrypted": CHECKED if policy.is_encrypted else ""}


PAGES = (FormPage("/tenants/{tenant_id}/sessions", show_sessions, change, who=ADMINS),)
