"""`/v1/files`: the files that batches read and write."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Scope

from gateway.artifacts.files import StagedFile
from gateway.clock import utc_now
from gateway.domain.files.models import StoredFile
from gateway.domain.files.service import (
    Quota,
    check_purpose,
    file_name,
    files_of,
    forget_file,
    get_file,
    hide_file,
    note_ready,
    parse_file_id,
    reserve,
)
from gateway.domain.principal import Principal
from gateway.http.errors import GatewayError, InvalidRequest
from gateway.http.forms import Form, Part, is_form
from gateway.inference.openai_pages import Order, openai_page
from gateway.inference.query import refuse_other_query
from gateway.services import InferenceDep, Services, ServicesDep
from protocol.ids import new_id

PATH = "/v1/files"
FORM_OVERHEAD_BYTES = 1 << 20
"""How much of a form may be fields and multipart framing, beside the file itself."""
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FORM_FIELDS = ("file", "purpose", _ANCHOR, _SECONDS)

router = APIRouter(prefix=PATH, tags=["files"], dependencies=[Depends(refuse_other_query)])


def is_file_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and scope["path"] == PATH and is_form(scope)


_FORM_BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"type": "string", "enum": ["batch"]},
                    _ANCHOR: {"type": "string", "enum": ["created_at"]},
                    _SECONDS: {"type": "integer", "minimum": 3600, "maximum": 30 * 86_400},
                },
                "additionalProperties": False,
            }
        }
    },
}


class ExpiresAfter(BaseModel):
    """A file's lifetime in seconds from its creation: an hour to 30 days."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=30 * 86_400)]


class FileView(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None

    @classmethod
    def of(cls, file: StoredFile) -> "FileView":
        return cls(
            id=file_name(file.id),
            bytes=file.size_bytes,
            created_at=int(file.created_at.timestamp()),
            expires_at=None if file.expires_at is None else int(file.expires_at.timestamp()),
            filename=file.filename,
            purpose=file.purpose,
        )


class FileList(BaseModel):
    object: Literal["list"]
    data: list[FileView]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


@router.post("", openapi_extra={"requestBody": _FORM_BODY})
async def upload_file(request: Request, principal: InferenceDep, services: ServicesDep) -> FileView:
    """Upload a file as a form (multipart/form-data).

    Its fields are `purpose` (`batch`), `file`, and optionally `expires_after[anchor]` (`created_at`) with
    `expires_after[seconds]`.
    """
    if not is_form(request.scope):
        raise InvalidRequest("send a form (multipart/form-data) with `purpose` and `file`", param="file")
    chunks = request.stream()
    with services.artifacts.permit(principal.tenant_id):
        try:
            return await _take_form(Form(chunks, request.headers["content-type"]), principal, services)
        except GatewayError:
            # Many clients do not read an answer until they have sent the whole body.
            try:
                async for _ in chunks:
                    pass
            except (ClientDisconnect, GatewayError):
                pass
            raise


async def _take_form(form: Form, principal: Principal, services: Services) -> FileView:
    """The fields and the file may come in any order."""
    fields: dict[str, str] = {}
    staged: StagedFile | None = None
    filename = ""
    async with AsyncExitStack() as stack:
        while (part := await form.next_part()) is not None:
            if part.name in fields or (part.name == "file" and staged is not None):
                raise InvalidRequest(f"{part.name}: it came twice", param=part.name)
            if part.name == "file":
                filename = _checked_name(part)
                reading = services.files.staging(part.chunks(), max_bytes=services.files.max_bytes)
                staged = await stack.enter_async_context(reading)
            elif part.name in FORM_FIELDS:
                fields[part.name] = await part.text()
            else:
                name = part.name[:64]
                raise InvalidRequest(f"{name}: there is no such field; send `purpose` and `file`", param=name)
        purpose = check_purpose(fields.get("purpose"))
        if staged is None:
            raise InvalidRequest("file: the form has none", param="file")
        if not staged.size_bytes:
            raise InvalidRequest("file: it is empty", param="file")
        now = utc_now()
        file = StoredFile(
            id=new_id(now),
            tenant_id=principal.tenant_id,
            purpose=purpose,
            filename=filename,
            size_bytes=staged.size_bytes,
            digest=staged.digest,
            created_at=now,
            expires_at=now + _lasts(fields, services),
            is_ready=False,
        )
        settings = services.settings
        await reserve(services.sessions, file, Quota(settings.max_files, settings.max_files_bytes))
        await services.files.publish(staged, file.id)
        await note_ready(services.sessions, file.id)
    return FileView.of(file)


@router.get("")
async def list_files(
    principal: InferenceDep,
    services: ServicesDep,
    purpose: Annotated[str | None, Query(max_length=32)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    after: Annotated[str | None, Query(max_length=64)] = None,
    order: Order = "desc",
) -> FileList:
    query = files_of(principal.tenant_id, now=utc_now())
    if purpose is not None:
        query = query.where(StoredFile.purpose == purpose)
    start = None if after is None else parse_file_id(after)
    async with services.sessions() as session:
        page = await openai_page(session, query, StoredFile.id, limit=limit, after=start, order=order, show=FileView.of)
    return FileList(**page)


@router.get("/{file_id}")
async def show_file(file_id: str, principal: InferenceDep, services: ServicesDep) -> FileView:
    return FileView.of(await _find(file_id, principal, services))


@router.get("/{file_id}/content", response_class=StreamingResponse)
async def read_file(file_id: str, principal: InferenceDep, services: ServicesDep) -> StreamingResponse:
    file = await _find(file_id, principal, services)
    blocks = services.files.read(file.digest, file.id)
    first = await anext(blocks, b"")
    headers = {"content-length": str(file.size_bytes), "content-disposition": "attachment"}
    return StreamingResponse(_with_first(first, blocks), headers=headers, media_type="application/octet-stream")


@router.delete("/{file_id}")
async def delete_file(file_id: str, principal: InferenceDep, services: ServicesDep) -> FileDeleted:
    file = await hide_file(services.sessions, principal.tenant_id, parse_file_id(file_id), now=utc_now())
    await services.files.remove(file.digest, file.id)
    await forget_file(services.sessions, file.id)
    return FileDeleted(id=file_id)


async def _find(file_id: str, principal: Principal, services: Services) -> StoredFile:
    async with services.sessions() as session:
        return await get_file(session, principal.tenant_id, parse_file_id(file_id), now=utc_now())


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """The first block was read before the answer starts, so that an unavailable store is reported by the status."""
    yield first
    async for block in rest:
        yield block


def _checked_name(part: Part) -> str:
    name = part.filename or ""
    if not 1 <= len(name) <= 255 or not name.isprintable():
        raise InvalidRequest("file: name it with 1 to 255 printable characters", param="file")
    return name


def _lasts(fields: dict[str, str], services: Services) -> timedelta:
    given = {"anchor": fields.get(_ANCHOR), "seconds": fields.get(_SECONDS)}
    if not any(given.values()):
        return timedelta(days=services.settings.files_kept_days)
    try:
        return timedelta(seconds=ExpiresAfter.model_validate(given).seconds)
    except ValidationError as error:
        first = error.errors(include_context=False)[0]
        param = f"expires_after[{first['loc'][0]}]"
        raise InvalidRequest(f"{param}: {first['msg']}", param=param) from None


def made_at(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
