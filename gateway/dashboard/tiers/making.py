"""The form of a tier: a new one, which may begin as a copy, or an existing one."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.tiers import TierChange, TierDraft, TierFields, TierView, get_tier, patch_tier, post_tier
from gateway.dashboard.forms import back_to
from gateway.dashboard.pages import OPERATORS, FormPage
from gateway.dashboard.rendering import render
from gateway.dashboard.tiers.fields import FIELDS, standing_tier, typed_tier
from gateway.dashboard.tiers.listing import PATH
from gateway.dashboard.typed import Form, Typed, changed_fields
from gateway.dashboard.visitors import Visitor
from gateway.services import Services


async def show_new(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    """Filled with the fields of the tier in `copy_of`, or with the defaults."""
    copy_of = typed.text("copy_of") or request.query_params.get("copy_of", "")
    source: Any = await get_tier(copy_of, visitor.principal, services.sessions) if copy_of else TierFields()
    return _form(visitor, Form(typed, {**standing_tier(source), "copy_of": copy_of}), None)


async def create(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    fields = {"name": typed.text("name"), "copy_of": typed.text("copy_of") or None, **typed_tier(typed)}
    made = await post_tier(TierDraft.model_validate(fields), visitor.principal, services)
    return back_to(f"{PATH}/{made.name}", "tier-made")


async def show_edit(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    tier = await _tier(request, services, visitor)
    return _form(visitor, Form(typed, standing_tier(tier)), tier)


async def change(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    """Sends only the fields that were changed."""
    tier = await _tier(request, services, visitor)
    changed = changed_fields(typed, standing_tier(tier))
    if changed:
        draft = TierChange.model_validate(typed_tier(typed, only=changed))
        await patch_tier(tier.name, draft, visitor.principal, services)
    return back_to(f"{PATH}/{tier.name}", "saved")


async def _tier(request: Request, services: Services, visitor: Visitor) -> TierView:
    return await get_tier(str(request.path_params["name"]), visitor.principal, services.sessions)


def _form(visitor: Visitor, form: Form, tier: TierView | None) -> Response:
    return render(
        "tiers/form.html",
        visitor=visitor,
        form=form,
        tier=tier,
        fields=FIELDS,
        back=f"{PATH}/{tier.name}" if tier else PATH,
    )


PAGES = (
    FormPage("/tiers/new", show_new, create, who=OPERATORS),
    FormPage("/tiers/{name}/edit", show_edit, change, who=OPERATORS),
)
