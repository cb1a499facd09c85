"""The form of a key: a new one, which is then shown once, or an existing one."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.keys import KeyChange, KeyDraft, KeyView, patch_key, post_key, show_key
from gateway.admin.limit_fields import KeyLimits
from gateway.dashboard.forms import back_to
from gateway.dashboard.keys.listing import PATH
from gateway.dashboard.keys.once import lead_to_secret
from gateway.dashboard.limit_forms import fields_of, standing_limits, typed_limits
from gateway.dashboard.links import path_id
from gateway.dashboard.pages import ADMINS, FormPage
from gateway.dashboard.rendering import render
from gateway.dashboard.tenant_field import standing_tenant, typed_tenant
from gateway.dashboard.typed import Form, Standing, Typed, changed_fields
from gateway.dashboard.visitors import Visitor
from gateway.http.errors import NotFound
from gateway.services import Services

SCOPES = (
    ("inference", "inference: sends requests"),
    ("usage", "usage: reads what the tenant uses and spends, here and over the API"),
    ("tenant-admin", "tenant-admin: makes and changes the tenant's keys, end users and adapters"),
    ("platform-admin", "platform-admin: may do everything, for all tenants"),
)
_TERMS = ("allowed_models", "allowed_networks")


async def show_new(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    standing = {**standing_tenant(request, visitor), "scopes": ["inference"]}
    return _form(visitor, Form(typed, standing), None)


async def create(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    fields: dict[str, Any] = {
        "tenant_id": await typed_tenant(services, visitor, typed),
        "name": typed.text("name"),
        "scopes": typed.all("scopes"),
        "expires_at": _moment(typed.text("expires_at"), visitor.zone),
        "limits": typed_limits(typed, "limits", KeyLimits),
        **{name: typed.lines(name) for name in _TERMS},
    }
    made = await post_key(KeyDraft.model_validate(fields), visitor.principal, services)
    return lead_to_secret(request, services, visitor, made)


async def show_edit(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    key = await _live_key(request, services, visitor)
    return _form(visitor, Form(typed, _standing(key, visitor)), key)


async def change(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    """Sends only the fields that were changed."""
    key = await _live_key(request, services, visitor)
    changed = changed_fields(typed, _standing(key, visitor))
    read = {
        "name": typed.text("name"),
        "scopes": typed.all("scopes"),
        "expires_at": _moment(typed.text("expires_at"), visitor.zone),
        **{name: typed.lines(name) for name in _TERMS},
    }
    fields: dict[str, Any] = {name: value for name, value in read.items() if name in changed}
    if limits := typed_limits(typed, "limits", KeyLimits, only=changed):
        fields["limits"] = limits
    if fields:
        await patch_key(key.id, KeyChange.model_validate(fields), visitor.principal, services)
    return back_to(f"{PATH}/{key.id}", "key-changed")


async def _live_key(request: Request, services: Services, visitor: Visitor) -> KeyView:
    key = await show_key(path_id(request, "key_id"), visitor.principal, services.sessions)
    if key.revoked_at is not None:
        raise NotFound(f"the key {key.name!r} was revoked, which is for good; make another")
    return key


def _standing(key: KeyView, visitor: Visitor) -> Standing:
    expires_at = key.expires_at.astimezone(visitor.zone) if key.expires_at else None
    return {
        "name": key.name,
        "scopes": key.scopes,
        "expires_at": f"{expires_at:%Y-%m-%dT%H:%M}" if expires_at else "",
        **{name: "\n".join(getattr(key, name) or ()) for name in _TERMS},
        **standing_limits("limits", KeyLimits, key.limits),
    }


def _moment(text: str, zone: ZoneInfo) -> str | None:
    """A time for the draft, in the visitor's zone unless the text names another. Text that is no time stays as it
    is."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text or None
    return (found if found.tzinfo else found.replace(tzinfo=zone)).isoformat()


def _form(visitor: Visitor, form: Form, key: KeyView | None) -> Response:
    may_all = visitor.principal.is_platform_admin
    return render(
        "keys/form.html",
        visitor=visitor,
        form=form,
        key=key,
        scopes=[each for each in SCOPES if may_all or each[0] != "platform-admin"],
        limit_fields=fields_of(KeyLimits),
        back=f"{PATH}/{key.id}" if key else PATH,
    )


PAGES = (
    FormPage("/keys/new", show_new, create, who=ADMINS),
    FormPage("/keys/{key_id}/edit", show_edit, change, who=ADMINS),
)
