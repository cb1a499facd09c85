from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError, model_validator
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from gateway.admin.adapter_forms import FormUpload, form_upload
from gateway.admin.etags import IfMatchDep
from gateway.admin.names import AdapterName, Draft, Id, ModelId, WorkerName
from gateway.artifacts.references import Reference
from gateway.clock import utc_now
from gateway.domain.adapters.models import Adapter, AdapterVariant, VariantStatus
from gateway.domain.adapters.publishing import NewAdapter, NewVersion, publish
from gateway.domain.adapters.service import adapters_visible_to, create_adapter, delete_adapter, read_adapter
from gateway.domain.principal import Principal
from gateway.http.errors import Forbidden, InvalidRequest
from gateway.http.forms import is_form
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, Services, ServicesDep, SessionsDep, asked_tenant
from gateway.upstream.adapter_keeper import adapter_bases

PATH = "/admin/v1/adapters"
FORM_OVERHEAD_BYTES = 4 << 20
"""Room for the form's fields and the config, beside the weights."""
DraftT = TypeVar("DraftT", bound=Draft)

router = APIRouter(prefix="/adapters", tags=["adapters"])


class AdapterDraft(Draft):
    """Send either `model` and `source`, or `variants`.

    `source` is a folder with the adapter's two files, below one of the operator's root folders. `variants` maps the id
    of a base model to the adapter's name at workers that have loaded it themselves. Without `tenant_id` the adapter is
    for every tenant, or for the own tenant of a tenant's administrator.
    """

    name: AdapterName
    tenant_id: Id | None = None
    model: ModelId | None = None
    source: Annotated[str, Field(max_length=2000)] | None = None
    variants: Annotated[dict[ModelId, WorkerName], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.variants is None) == (self.source is None) or (self.model is None) != (self.source is None):
            raise ValueError("send `model` and `source`, or `variants`")
        return self


class VariantDraft(Draft):
    """`source` is a folder with the adapter's two files, below one of the operator's root folders."""

    source: Annotated[str, Field(max_length=2000)]


class UploadFields(Draft):
    """The fields of a form; they come before its files `config` and `weights`."""

    name: AdapterName
    model: ModelId
    tenant_id: Id | None = None


class VariantView(BaseModel):
    """`digest`, `size_bytes` and `rank` are null unless the platform stores the adapter's files."""

    worker_name: str
    status: VariantStatus
    reason: str | None
    """Why the variant is not ready."""
    version: int
    changed_at: datetime | None
    digest: str | None
    size_bytes: int | None
    rank: int | None

    @classmethod
    def of(cls, variant: AdapterVariant) -> "VariantView":
        artifact = variant.artifact
        return cls(
            worker_name=variant.worker_name,
            status=variant.status,  # type: ignore[arg-type]
            reason=variant.reason,
            version=variant.version,
            changed_at=variant.changed_at,
            digest=variant.digest,
            size_bytes=artifact.size_bytes if artifact else None,
            rank=artifact.rank if artifact else None,
        )


class AdapterView(BaseModel):
    id: UUID
    name: str
    tenant_id: UUID | None
    status: Literal["ready", "pending", "refused"]
    """`ready` if at least one variant can be served."""
    variants: dict[str, str]
    """Base model id -> the adapter's name at that model's workers."""
    details: dict[str, VariantView]
    created_at: datetime

    @classmethod
    def of(cls, adapter: Adapter) -> "AdapterView":
        """`adapter.variants` and their artifacts must be loaded."""
        statuses = {variant.status for variant in adapter.variants}
        return cls(
            id=adapter.id,
            name=adapter.name,
            tenant_id=adapter.tenant_id,
            status="ready" if "ready" in statuses else "pending" if "pending" in statuses else "refused",
            variants={variant.model_id: variant.worker_name for variant in adapter.variants},
            details={variant.model_id: VariantView.of(variant) for variant in adapter.variants},
            created_at=adapter.created_at,
        )


def is_adapter_upload(scope: Scope) -> bool:
    return scope["method"] in ("POST", "PUT") and scope["path"].startswith(PATH) and is_form(scope)


def _takes(form_fields: type[Draft] | None, json: type[Draft]) -> dict[str, Any]:
    """The request body for OpenAPI, a form or JSON. FastAPI cannot infer it, since the route reads it itself."""
    fields = {} if form_fields is None else form_fields.model_json_schema()["properties"]
    files = {name: {"type": "string", "format": "binary"} for name in ("config", "weights")}
    form = {
        "type": "object",
        "properties": fields | files,
        "required": [*(form_fields.model_json_schema()["required"] if form_fields else ()), *files],
        "description": "`config` is adapter_config.json; `weights`, the last part, is adapter_model.safetensors",
    }
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": json.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


@router.post("", status_code=201, openapi_extra=_takes(UploadFields, AdapterDraft))
async def post_adapter(request: Request, admin: AdminDep, services: ServicesDep) -> AdapterView:
    """Upload an adapter, publish one from a folder (`source`), or declare one that workers have loaded themselves.

    The adapter can be used under its name as soon as its `status` is `ready`. Only platform administrators may name a
    `source`.
    """
    if is_form(request.scope):
        async with form_upload(request) as upload:
            return await upload_adapter(services, admin, await upload.fields(), upload)
    draft = await _read_json(request, AdapterDraft)
    if draft.source is not None and draft.model is not None:
        place = NewAdapter(draft.name, draft.model, draft.tenant_id, _served_names(services))
        return await publish_files(services, admin, place, _reference(services, admin, draft.source))
    adapter = await create_adapter(
        services.sessions,
        admin,
        name=draft.name,
        variants=draft.variants or {},
        tenant_id=draft.tenant_id,
        served_names=_served_names(services),
        now=utc_now(),
    )
    await services.reload()
    return AdapterView.of(adapter)


@router.put("/{adapter_id}/variants/{model_id:path}", openapi_extra=_takes(None, VariantDraft))
async def put_variant(
    adapter_id: UUID,
    model_id: str,
    request: Request,
    admin: AdminDep,
    services: ServicesDep,
    if_match: IfMatchDep = None,
) -> AdapterView:
    """Add a variant of the adapter for another base model, or replace the existing variant with a new version.

    Requests under way finish with the old version. `If-Match` takes the variant's `version`, or `"0"` if there is none.
    """
    place = NewVersion(adapter_id, model_id, seen_version=if_match)
    if is_form(request.scope):
        async with form_upload(request) as upload:
            if await upload.fields():
                raise InvalidRequest("the form holds `config` and `weights` alone")
            return await publish_files(services, admin, place, upload)
    draft = await _read_json(request, VariantDraft)
    return await publish_files(services, admin, place, _reference(services, admin, draft.source))


@router.get("")
async def list_adapters(
    admin: AdminDep,
    sessions: SessionsDep,
    page: PageDep,
    tenant_id: UUID | None = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[AdapterView]:
    """List the adapters that a tenant may use: its own and those for everybody.

    A platform administrator who names no `tenant_id` gets all adapters.
    """
    query = adapters_visible_to(asked_tenant(admin, tenant_id))
    if name is not None:
        query = query.where(Adapter.name == name)
    async with sessions() as session:
        return await fetch_page(session, query, Adapter.id, page, AdapterView.of)


@router.get("/{adapter_id}")
async def show_adapter(adapter_id: UUID, admin: AdminDep, sessions: SessionsDep) -> AdapterView:
    adapter = await read_adapter(sessions, adapter_id)
    if adapter.tenant_id is not None:
        admin.require_tenant(adapter.tenant_id)
    return AdapterView.of(adapter)


@router.delete("/{adapter_id}", status_code=204)
async def remove_adapter(adapter_id: UUID, admin: AdminDep, services: ServicesDep) -> None:
    """Delete an adapter.

    Requests under way finish with it. Workers drop it within seconds, the store some time later.
    """
    await delete_adapter(services.sessions, admin, adapter_id, now=utc_now())
    await services.reload()


async def upload_adapter(
    services: Services, admin: Principal, fields: Mapping[str, str], upload: FormUpload
) -> AdapterView:
    """fields: as in UploadFields."""
    checked = _checked(fields)
    place = NewAdapter(checked.name, checked.model, checked.tenant_id, _served_names(services))
    return await publish_files(services, admin, place, upload)


async def publish_files(
    services: Services, admin: Principal, place: NewAdapter | NewVersion, upload: FormUpload | Reference
) -> AdapterView:
    base = adapter_bases(services.registry.fleet).get(place.model_id)
    with services.artifacts.permit(admin.tenant_id):
        adapter = await publish(services.sessions, services.artifacts, admin, place, upload, base=base, now=utc_now())
    await services.reload()
    return AdapterView.of(adapter)


def _reference(services: Services, admin: Principal, source: str) -> Reference:
    """Raises Forbidden for a tenant's administrator, who could name another tenant's files."""
    if not admin.is_platform_admin:
        raise Forbidden("only administrators of the platform may name a `source`; upload the files", param="source")
    return services.references.open(source)


def _served_names(services: Services) -> set[str]:
    pools = services.registry.fleet.pools.values()
    return {name for pool in pools for name in (pool.name, pool.model_id)}


async def _read_json(request: Request, draft: type[DraftT]) -> DraftT:
    try:
        body = await request.body()
    except ClientDisconnect:
        raise InvalidRequest("the body was cut") from None
    try:
        return draft.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_context=False)) from None


def _checked(fields: Mapping[str, str]) -> UploadFields:
    try:
        return UploadFields.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_context=False)[0]
        param = str(first["loc"][0])
        raise InvalidRequest(f"{param}: {first['msg']}", param=param) from None
