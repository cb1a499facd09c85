"""The form of a tenant, new or existing."""

from typing import Any

from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.limit_fields import TenantLimits, UserLimits
from gateway.admin.tenants import TenantChange, TenantDraft, TenantView, patch_tenant, post_tenant, show_tenant
from gateway.dashboard.forms import back_to
from gateway.dashboard.limit_forms import fields_of, standing_limits, typed_limits
from gateway.dashboard.links import path_id
from gateway.dashboard.pages import ADMINS, OPERATORS, FormPage
from gateway.dashboard.rendering import render
from gateway.dashboard.tenants.listing import PATH
from gateway.dashboard.typed import CHECKED, Form, Standing, Typed, changed_fields
from gateway.dashboard.visitors import Visitor
from gateway.domain.tiers.models import Tier
from gateway.http.errors import NotFound
from gateway.services import Services


async def show_new(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return await _form(services, visitor, Form(typed), None)


async def create(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    fields: dict[str, Any] = {"name": typed.text("name"), "tier": typed.text("tier")}
    fields["is_local_only"] = typed.is_checked("is_local_only")
    fields["limits"] = typed_limits(typed, "limits", TenantLimits)
    fields["user_limits"] = typed_limits(typed, "user_limits", UserLimits)
    made = await post_tenant(TenantDraft.model_validate(fields), visitor.principal, services)
    return back_to(f"{PATH}/{made.id}", "tenant-made")


async def show_edit(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    tenant = await live_tenant(request, services, visitor)
    return await _form(services, visitor, Form(typed, _standing(tenant, visitor)), tenant)


async def change(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    """Sends only the fields that were changed."""
    tenant = await live_tenant(request, services, visitor)
    changed = changed_fields(typed, _standing(tenant, visitor))
    fields: dict[str, Any] = {name: typed.text(name) for name in ("name", "tier") if name in changed}
    if "is_local_only" in changed:
        fields["is_local_only"] = typed.is_checked("is_local_only")
    for prefix, draft in (("limits", TenantLimits), ("user_limits", UserLimits)):
        limits = typed_limits(typed, prefix, draft, only=changed)
        if limits:
            fields[prefix] = limits
    if fields:
        await patch_tenant(tenant.id, TenantChange.model_validate(fields), visitor.principal, services)
    return back_to(f"{PATH}/{tenant.id}", "saved")


async def live_tenant(request: Request, services: Services, visitor: Visitor) -> TenantView:
    """Raises NotFound, also for a deleted tenant."""
    tenant = await show_tenant(path_id(request, "tenant_id"), visitor.principal, services.sessions)
    if tenant.deleted_at is not None:
        raise NotFound(f"the tenant {tenant.name!r} was deleted")
    return tenant


def _standing(tenant: TenantView, visitor: Visitor) -> Standing:
    """The fields that the visitor may change. A tenant's own administrator may change only its end users' limits."""
    user_limits = standing_limits("user_limits", UserLimits, tenant.user_limits)
    if not visitor.principal.is_platform_admin:
        return user_limits
    fields = {"name": tenant.name, "tier": tenant.tier, "is_local_only": CHECKED if tenant.is_local_only else ""}
    return {**fields, **standing_limits("limits", TenantLimits, tenant.limits), **user_limits}


async def _form(services: Services, visitor: Visitor, form: Form, tenant: TenantView | None) -> Response:
    async with services.sessions() as session:
        live = set(await session.scalars(select(Tier.name).where(Tier.retired_at.is_(None))))
    return render(
        "tenants/form.html",
        visitor=visitor,
        form=form,
        tenant=tenant,
        tiers=sorted(live | {tenant.tier} if tenant else live),
        tier=services.catalog.current.tiers.get(tenant.tier) if tenant else None,
        limit_fields=fields_of(TenantLimits),
        user_limit_fields=fields_of(UserLimits),
        back=f"{PATH}/{tenant.id}" if tenant else PATH,
    )


PAGES = (
    FormPage("/tenants/new", show_new, create, who=OPERATORS),
    FormPage("/tenants/{tenant_id}/edit", show_edit, change, who=ADMINS),
)
