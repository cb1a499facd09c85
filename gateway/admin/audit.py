import csv
import json
from collections.abc import AsyncIterator, Collection
from datetime import datetime
from io import StringIO
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sqlalchemy import Select, select

from gateway.billing.documents.csv import cell
from gateway.database import Sessions
from gateway.domain.audit.models import AuditEntry
from gateway.domain.audit.service import EntryFilter, entries_of
from gateway.domain.keys.models import ApiKey
from gateway.domain.principal import Principal
from gateway.http.errors import InvalidRequest
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.metering.windows import parse_moment
from gateway.services import AdminDep, SessionsDep, visible_tenant

router = APIRouter(prefix="/audit", tags=["audit"])

_CHUNK = 1000


class AuditView(BaseModel):
    """`before` and `after`: the object's fields, of a change those alone that it changed; never a secret."""

    id: UUID
    position: int | None
    """In the log of all tenants, as `hash`: for the platform's administrators."""
    at: datetime
    actor_key_id: UUID | None
    """null: the platform itself."""
    tenant_id: UUID | None
    action: str
    object_id: str
    request_id: str | None
    address: str | None
    """Where the request came from; of the platform's operators only they see it."""
    detail: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    is_erased: bool
    """An erasure or the retention of contents has emptied `object_id`, `request_id`, `address`, `detail`, `before`,
    `after`."""
    hash: str | None
    """Over this entry and the one before, in hexadecimal; `tiergate audit verify` tells whether it holds."""


def asked_entries(
    admin: AdminDep,
    tenant_id: UUID | None = None,
    actor_key_id: UUID | None = None,
    action: Annotated[
        str | None, Query(max_length=64, description="`invoice.finalize`, or `invoice` for all of its actions")
    ] = None,
    object_id: Annotated[str | None, Query(max_length=200)] = None,
    request_id: Annotated[str | None, Query(max_length=64)] = None,
    start: Annotated[str | None, Query(alias="from")] = None,
    end: Annotated[str | None, Query(alias="to")] = None,
) -> Select[AuditEntry]:
    asked = EntryFilter(
        actor_key_id=actor_key_id,
        action=action,
        object_id=object_id,
        request_id=request_id,
        since=None if start is None else parse_moment(start, "from"),
        until=None if end is None else parse_moment(end, "to"),
    )
    if asked.since is not None and asked.until is not None and asked.since >= asked.until:
        raise InvalidRequest("from must be before to", param="from")
    if tenant_id is not None:
        admin.require_tenant(tenant_id)
    return entries_of(tenant_id or visible_tenant(admin), asked)


AskedDep = Annotated[Select[AuditEntry], Depends(asked_entries)]


@router.get("")
async def list_entries(
    admin: AdminDep, sessions: SessionsDep, page: PageDep, asked: AskedDep, newest_first: bool = False
) -> Page[AuditView]:
    own_keys = await _own_keys(admin, sessions)
    async with sessions() as session:
        return await fetch_page(
            session,
            asked,
            AuditEntry.id,
            page,
            lambda entry: _view(entry, admin, own_keys),
            is_newest_first=newest_first,
        )


@router.get("/export", response_class=StreamingResponse)
async def export(
    admin: AdminDep, sessions: SessionsDep, asked: AskedDep, format: Literal["jsonl", "csv"] = "jsonl"
) -> StreamingResponse:
    """All entries that are asked for, in their order: a line each."""
    own_keys = await _own_keys(admin, sessions)
    lines = _lines(sessions, asked, admin, own_keys, is_csv=format == "csv")
    kind = "text/csv; charset=utf-8" if format == "csv" else "application/jsonl"
    return StreamingResponse(
        lines, media_type=kind, headers={"content-disposition": f'attachment; filename="audit.{format}"'}
    )


async def _lines(
    sessions: Sessions, asked: Select[AuditEntry], admin: Principal, own_keys: Collection[UUID], *, is_csv: bool
) -> AsyncIterator[str]:
    """No database session is open while a client takes its time."""
    if is_csv:
        yield _csv_line(list(AuditView.model_fields))
    after = 0
    while True:
        chunk = asked.where(AuditEntry.position > after).order_by(AuditEntry.position).limit(_CHUNK)
        async with sessions() as session:
            entries = list(await session.scalars(chunk))
        views = [_view(entry, admin, own_keys) for entry in entries]
        if is_csv:
            yield "".join(
                _csv_line([_flat(value) for value in view.model_dump(mode="json").values()]) for view in views
            )
        else:
            yield "".join(f"{view.model_dump_json()}\n" for view in views)
        if len(entries) < _CHUNK:
            return
        after = entries[-1].position


def _view(entry: AuditEntry, admin: Principal, own_keys: Collection[UUID]) -> AuditView:
    """A tenant does not learn from the positions how much others do."""
    sees_all = admin.is_platform_admin
    return AuditView(
        id=entry.id,
        position=entry.position if sees_all else None,
        at=entry.at,
        actor_key_id=entry.actor_key_id,
        tenant_id=entry.tenant_id,
        action=entry.action,
        object_id=entry.object_id,
        request_id=entry.request_id,
        address=entry.address if sees_all or entry.actor_key_id in own_keys else None,
        detail=entry.detail,
        before=entry.before,
        after=entry.after,
        is_erased=entry.is_erased,
        hash=entry.hash.hex() if sees_all else None,
    )


async def _own_keys(admin: Principal, sessions: Sessions) -> set[UUID]:
    """A tenant's; empty for the platform's administrators, who need not ask."""
    if admin.is_platform_admin:
        return set()
    async with sessions() as session:
        return set(await session.scalars(select(ApiKey.id).where(ApiKey.tenant_id == admin.tenant_id)))


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def _csv_line(values: list[Any]) -> str:
    target = StringIO()
    csv.writer(target).writerow([cell(value) for value in values])
    return target.getvalue()
