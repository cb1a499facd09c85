"""Uploading an adapter, replacing a variant with a new version, and deleting an adapter."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from gateway.admin.adapter_forms import FormUpload
from gateway.admin.adapters import AdapterView, publish_files, remove_adapter, upload_adapter
from gateway.dashboard.adapters import PATH, chat_models, may_change, read_asked
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.pages import FormPage, UploadPage
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import TOKEN, Form, Typed
from gateway.dashboard.visitors import Visitor
from gateway.domain.adapters.publishing import NewVersion
from gateway.http.errors import Conflict, InvalidRequest, NotFound
from gateway.http.forms import is_form
from gateway.services import Services


def is_console_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and scope["path"].startswith(PATH) and is_form(scope)


async def ask_upload(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    models = chat_models(services)
    standing = {"tenant": visitor.names.tenants.get(request.query_params.get("tenant", ""), "")}
    return render("adapter_upload.html", visitor=visitor, form=Form(typed, standing), models=models)


async def upload(request: Request, services: Services, visitor: Visitor, typed: Typed, files: FormUpload) -> Response:
    fields = {name: typed.text(name) for name in typed.fields if name not in (TOKEN, "tenant")}
    if typed.text("tenant"):
        fields["tenant_id"] = _tenant_id(visitor, typed.text("tenant"))
    made = await upload_adapter(services, visitor.principal, fields, files)
    return back_to(f"{PATH}/{made.id}", "uploaded")


async def ask_replace(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    adapter, model_id = await _own(request, services, visitor), _model(request, services)
    current = adapter.details.get(model_id)
    standing = {"version": str(current.version if current else 0)}
    # After a conflict drop what was typed: the form must be about the version that is there now.
    shown = Form(typed if typed.status != 409 else Typed(problems=typed.problems, status=409), standing)
    return render(
        "adapter_replace.html", visitor=visitor, form=shown, adapter=adapter, model_id=model_id, current=current
    )


async def replace(request: Request, services: Services, visitor: Visitor, typed: Typed, files: FormUpload) -> Response:
    adapter, version = await _own(request, services, visitor), typed.text("version")
    if not (version.isascii() and version.isdecimal() and len(version) < 10):
        raise InvalidRequest("send the form of this page")
    place = NewVersion(adapter.id, _model(request, services), seen_version=int(version))
    await publish_files(services, visitor.principal, place, files)
    return back_to(f"{PATH}/{adapter.id}", "replaced")


async def ask_delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    adapter = await _own(request, services, visitor)
    models = ", ".join(f"{model} version {each.version}" for model, each in adapter.details.items())
    return confirmation(
        visitor,
        typed,
        title="Delete an adapter",
        text=f"{adapter.name}, for {models}. Requests for it are refused from then on; what it was used for stays.",
        button="Delete it",
        back=f"{PATH}/{adapter.id}",
        back_label="Keep it",
        carried={"versions": _versions(adapter)},
    )


async def delete(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    adapter = await _own(request, services, visitor)
    if typed.text("versions") != _versions(adapter):
        raise Conflict(
            "it was changed since this page was shown, so nothing was deleted; what is there now stands below"
        )
    await remove_adapter(adapter.id, visitor.principal, services)
    return back_to(PATH, "adapter-deleted")


def _versions(adapter: AdapterView) -> str:
    """The versions that the confirmation page has shown."""
    return " ".join(f"{model}:{each.version}" for model, each in sorted(adapter.details.items()))


async def _own(request: Request, services: Services, visitor: Visitor) -> AdapterView:
    adapter = await read_asked(request, services, visitor)
    if not may_change(visitor, adapter):
        raise NotFound("this adapter is for everybody, and only the platform's operator changes it")
    return adapter


def _model(request: Request, services: Services) -> str:
    asked = request.query_params.get("model", "")
    if asked not in chat_models(services):
        raise NotFound("there is no such base model; choose one on the adapter's page")
    return asked


def _tenant_id(visitor: Visitor, asked: str) -> str:
    """The id of the tenant with this name or id. Raises InvalidRequest."""
    names = visitor.names.tenants
    found = asked if asked in names else next((known for known, name in names.items() if name == asked), None)
    if found is None:
        raise InvalidRequest("there is no tenant of this name or id", param="tenant")
    return found


PAGES = (
    UploadPage("/adapters/new", ask_upload, upload),
    UploadPage("/adapters/{adapter_id}/replace", ask_replace, replace),
    FormPage("/adapters/{adapter_id}/delete", ask_delete, delete),
)
