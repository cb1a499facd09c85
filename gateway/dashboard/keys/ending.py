"""Rotating a key, with an overlap in which both keys work, and revoking one."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.keys import KeyView, Rotation, delete_key, post_rotation, show_key
from gateway.dashboard.draft_values import whole
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.keys.listing import PATH
from gateway.dashboard.keys.once import lead_to_secret
from gateway.dashboard.links import path_id
from gateway.dashboard.pages import ADMINS, FormPage
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Form, Typed
from gateway.dashboard.visitors import Visitor
from gateway.services import Services

OVERLAPS = (("0", "not at all"), ("3600", "an hour"), ("86400", "a day"), ("604800", "a week"), ("2592000", "30 days"))


async def ask_rotate(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    key = await _key(request, services, visitor)
    form = Form(typed, {"overlap_s": "3600"})
    return render("keys/rotate.html", visitor=visitor, form=form, key=key, overlaps=OVERLAPS, path=f"{PATH}/{key.id}")


async def rotate(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    rotation = Rotation.model_validate({"overlap_s": whole(typed.text("overlap_s"))})
    made = await post_rotation(path_id(request, "key_id"), rotation, visitor.principal, services)
    return lead_to_secret(request, services, visitor, made)


async def ask_revoke(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    key = await _key(request, services, visitor)
    is_own = key.id == visitor.principal.key_id
    return confirmation(
        visitor,
        typed,
        title=f"Revoke {key.name}?",
        text="Every gateway refuses it within a second or two, for good."
        + (" You are logged in with it, so this ends your visit." if is_own else ""),
        button="Revoke the key",
        back=f"{PATH}/{key.id}",
        back_label="Back",
    )


async def revoke(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    key_id = path_id(request, "key_id")
    await delete_key(key_id, visitor.principal, services)
    return back_to(f"{PATH}/{key_id}", "key-revoked")


async def _key(request: Request, services: Services, visitor: Visitor) -> KeyView:
    return await show_key(path_id(request, "key_id"), visitor.principal, services.sessions)


PAGES = (
    FormPage("/keys/{key_id}/rotate", ask_rotate, rotate, who=ADMINS),
    FormPage("/keys/{key_id}/revoke", ask_revoke, revoke, who=ADMINS),
)
