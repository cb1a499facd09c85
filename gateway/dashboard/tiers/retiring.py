"""Retiring a tier, and taking it back into use."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.tiers import TierChange, get_tier, patch_tier
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.pages import OPERATORS, FormPage
from gateway.dashboard.tiers.listing import PATH
from gateway.dashboard.typed import Typed
from gateway.dashboard.visitors import Visitor
from gateway.services import Services


async def ask_retire(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    text = "No tenant can move to it any more. Those that have it keep it."
    return await _ask(request, services, visitor, typed, verb="Retire", text=text)


async def ask_return(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return await _ask(request, services, visitor, typed, verb="Return", text="Tenants can have it again.")


async def retire(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return await _change(request, services, visitor, is_retired=True)


async def bring_back(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    return await _change(request, services, visitor, is_retired=False)


async def _change(request: Request, services: Services, visitor: Visitor, *, is_retired: bool) -> Response:
    name = str(request.path_params["name"])
    await patch_tier(name, TierChange(is_retired=is_retired), visitor.principal, services)
    return back_to(f"{PATH}/{name}", "tier-retired" if is_retired else "tier-returned")


async def _ask(
    request: Request, services: Services, visitor: Visitor, typed: Typed, *, verb: str, text: str
) -> Response:
    tier = await get_tier(str(request.path_params["name"]), visitor.principal, services.sessions)
    return confirmation(
        visitor,
        typed,
        title=f"{verb} the tier {tier.name}?",
        text=text,
        button=f"{verb} the tier",
        back=f"{PATH}/{tier.name}",
        back_label="Back",
    )


PAGES = (
    FormPage("/tiers/{name}/retire", ask_retire, retire, who=OPERATORS),
    FormPage("/tiers/{name}/return", ask_return, bring_back, who=OPERATORS),
)
