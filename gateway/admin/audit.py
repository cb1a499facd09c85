import csv
import json
from collections.abc import AsyncIterator, Collection
from datetime import datetime
from io import StringIO
from typing import Annotated, Any, Literal, NamedTuple
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
from gateway.domain.people.queries import subjects_of
from gateway.domain.principal import Principal
from gateway.http.errors import InvalidRequest
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.metering.windows import parse_moment
from gateway.services import AdminDep, SessionsDep, visible_tenant

router = APIRouter(prefix="/audit", tags=["audit"])

_CHUNK = 1000


class AuditView(BaseModel):
    """`before` and `after` hold the object's fields, for a change only those that changed. They never hold a secret."""

    id: UUID
    position: int | None
    """The position in the log of all tenants. Like `hash`, only platform administrators see it."""
    at: datetime
    actor_key_id: UUID | None
    """Null without a person: the platform itself acted."""
    actor_subject: str | None
    """The person at the console: the subject at the identity provider."""
    actor_email: str | None
    tenant_id: UUID | None
    action: str
    object_id: str
    request_id: str | None
    address: str | None
    """Where the request came from. Only the platform's operators see the addresses of operators."""
    detail: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    is_erased: bool
    """An erasure or the retention of contents has emptied `object_id`, `request_id`, `address`, `detail`, `before`,
    `after`."""
    hash: str | None
    """Hash over this entry and the one before, in hexadecimal. `tiergate audit verify` checks it."""


def asked_entries(
    admin: AdminDep,
    tenant_id: UUID | None = None,
    actor_key_id: UUID | None = None,
    actor_person: Annotated[
        str | None, Query(max_length=320, description="a person's email, or the subject at the identity provider")
    ] = None,
    action: Annotated[
        str | None, Query(max_length=64, description="such as `invoice.finalize`, or `invoice` for all of its actions")
    ] = None,
    object_id: Annotated[str | None, Query(max_length=200)] = None,
    request_id: Annotated[str | None, Query(max_length=64)] = None,
    start: Annotated[str | None, Query(alias="from")] = None,
    end: Annotated[str | None, Query(alias="to")] = None,
) -> Select[AuditEntry]:
    asked = EntryFilter(
        actor_key_id=actor_key_id,
        actor_person=actor_person,
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
    entries = entries_of(tenant_id or visible_tenant(admin), asked)
    if asked.actor_person is not None and not admin.is_platform_admin:
        entries = entries.where(AuditEntry.actor_subject.in_(subjects_of(admin.tenant_id)))
    return entries


AskedDep = Annotated[Select[AuditEntry], Depends(asked_entries)]


@router.get("")
async def list_entries(
    admin: AdminDep, sessions: SessionsDep, page: PageDep, asked: AskedDep, newest_first: bool = False
) -> Page[AuditView]:
    own = await _own_actors(admin, sessions)
    async with sessions() as session:
        return await fetch_page(
            session,
            asked,
            AuditEntry.id,
            page,
            lambda entry: _view(entry, admin, own),
            is_newest_first=newest_first,
        )


@router.get("/export", response_class=StreamingResponse)
async def export(
    admin: AdminDep, sessions: SessionsDep, asked: AskedDep, format: Literal["jsonl", "csv"] = "jsonl"
) -> StreamingResponse:
    """Export all matching entries in the order of the log, one per line, as JSON lines or CSV."""
    own = await _own_actors(admin, sessions)
    lines = _lines(sessions, asked, admin, own, is_csv=format == "csv")
    kind = "text/csv; charset=utf-8" if format == "csv" else "application/jsonl"
    return StreamingResponse(
        lines, media_type=kind, headers={"content-disposition": f'attachment; filename="audit.{format}"'}
    )


async def _lines(
    sessions: Sessions, asked: Select[AuditEntry], admin: Principal, own: "_OwnActors", *, is_csv: bool
) -> AsyncIterator[str]:
    """Reads in chunks, so that no database session is open while a slow client downloads."""
    if is_csv:
        yield _csv_line(list(AuditView.model_fields))
    after = 0
    while True:
        chunk = asked.where(AuditEntry.position > after).order_by(AuditEntry.position).limit(_CHUNK)
        async with sessions() as session:
            entries = list(await session.scalars(chunk))
        views = [_view(entry, admin, own) for entry in entries]
        if is_csv:
            yield "".join(
                _csv_line([_flat(value) for value in view.model_dump(mode="json").values()]) for view in views
            )
        else:
            yield "".join(f"{view.model_dump_json()}\n" for view in views)
        if len(entries) < _CHUNK:
            return
        after = entries[-1].position


def _view(entry: AuditEntry, admin: Principal, own: "_OwnActors") -> AuditView:
    """Positions would tell a tenant how active others are, so only the platform sees them. Nor does a tenant see who
    the platform's operators are."""
    sees_all = admin.is_platform_admin
    sees_person = sees_all or entry.actor_subject in own.subjects
    sees_address = sees_person if entry.actor_subject else sees_all or entry.actor_key_id in own.key_ids
    return AuditView(
        id=entry.id,
        position=entry.position if sees_all else None,
        at=entry.at,
        actor_key_id=entry.actor_key_id,
        actor_subject=entry.actor_subject if sees_person else None,
        actor_email=entry.actor_email if sees_person else None,
        tenant_id=entry.tenant_id,
        action=entry.action,
        object_id=entry.object_id,
        request_id=entry.request_id,
        address=entry.address if sees_address else None,
        detail=entry.detail,
        before=entry.before,
        after=entry.after,
        is_erased=entry.is_erased,
        hash=entry.hash.hex() if sees_all else None,
    )


class _OwnActors(NamedTuple):
    """A tenant's own keys and people; empty for platform administrators, who see every actor anyway."""

    key_ids: Collection[UUID] = ()
    subjects: Collection[str] = ()


async def _own_actors(admin: Principal, sessions: Sessions) -> _OwnActors:
    if admin.is_platform_admin:
        return _OwnActors()
    async with sessions() as session:
        key_ids = await session.scalars(select(ApiKey.id).where(ApiKey.tenant_id == admin.tenant_id))
        return _OwnActors(set(key_ids), set(await session.scalars(subjects_of(admin.tenant_id))))


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def _csv_line(values: list[Any]) -> str:
    target = StringIO()
    csv.writer(target).writerow([cell(value) for value in values])
    return target.getvalue()
