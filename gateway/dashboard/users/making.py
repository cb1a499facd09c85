"""An end user's limits: set, changed beside their current usage, and taken back."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.limit_fields import UserLimits
from gateway.admin.tenants import show_tenant
from gateway.admin.users import (
    EndUserChange,
    EndUserDraft,
    EndUserView,
    patch_user,
    post_user,
    remove_user,
    show_user,
)
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.limit_forms import fields_of, standing_limits, typed_limits
from gateway.dashboard.limits_now import LABELS, limits_now
from gateway.dashboard.links import path_id
from gateway.dashboard.pages import ADMINS, FormPage
from gateway.dashboard.rendering import render
from gateway.dashboard.tenant_field import standing_tenant, typed_tenant
from gateway.dashboard.typed import Form, Typed, changed_fields
from gateway.dashboard.users.listing import PATH
from gateway.dashboard.visitors import Visitor
from gateway.services import Services


async def show_new(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    form = Form(typed, standing_tenant(request, visitor))
    return render("users/new.html", visitor=visitor, form=form, limit_fields=fields_of(UserLimits), back=PATH)


async def create(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    fields: dict[str, Any] = {
        "tenant_id": await typed_tenant(services, visitor, typed),
        "user_id": typed.text("user_id"),
        "limits": typed_limits(typed, "limits", UserLimits),
    }
    made = await post_user(EndUserDraft.model_validate(fields), visitor.principal, services)
    return back_to(f"{PATH}/{made.id}", "user-made")


async def show_one(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    """Raises NotFound, also for another tenant's end user."""
    user = await _user(request, services, visitor)
    tenant = await show_tenant(user.tenant_id, visitor.principal, services.sessions)
    limits = await limits_now(
        services, tenant_id=tenant.id, tenant_name=tenant.name, tier=tenant.tier, user=user.user_id
    )
    return render(
        "users/one.html",
        visitor=visitor,
        form=Form(typed, standing_limits("limits", UserLimits, user.limits)),
        path=f"{PATH}/{user.id}",
        user=user,
        tenant=tenant,
        limits=limits,
        labels=LABELS,
        limit_fields=fields_of(UserLimits),
    )


async def change(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    user = await _user(request, services, visitor)
    changed = changed_fields(typed, standing_limits("limits", UserLimits, user.limits))
    if changed:
        limits = typed_limits(typed, "limits", UserLimits, only=changed)
        await patch_user(user.id, EndUserChange.model_validate({"limits": limits}), visitor.principal, services)
    return back_to(f"{PATH}/{user.id}", "saved")


async def ask_delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    user = await _user(request, services, visitor)
    return confirmation(
        visitor,
        typed,
        title=f"Take back the limits of {user.user_id}?",
        text="The tenant's limits for end users hold again.",
        button="Take them back",
        back=f"{PATH}/{user.id}",
        back_label="Back",
    )


async def delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    await remove_user(path_id(request, "user_row_id"), visitor.principal, services)
    return back_to(PATH, "user-deleted")


async def _user(request: Request, services: Services, visitor: Visitor) -> EndUserView:
    return await show_user(path_id(request, "user_row_id"), visitor.principal, services.sessions)


PAGES = (
    FormPage("/users/new", show_new, create, who=ADMINS),
    FormPage("/users/{user_row_id}", show_one, change, who=ADMINS),
    FormPage("/users/{user_row_id}/delete", ask_delete, delete, who=ADMINS),
)
