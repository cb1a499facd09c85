"""The audit log, who changed what: filtered, paged, and as CSV."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from uuid import UUID

from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import audit as api
from gateway.clock import utc_now
from gateway.dashboard.links import Query, query_of
from gateway.dashboard.numbers import exact_money
from gateway.dashboard.pages import ADMINS, Page
from gateway.dashboard.rendering import download, render
from gateway.dashboard.spreadsheets import cell
from gateway.dashboard.visitors import Visitor
from gateway.dashboard.zones import typed_moment
from gateway.database import Sessions
from gateway.domain.keys.models import ApiKey
from gateway.http.pages import MAX_LIMIT, PageRequest
from gateway.http.pages import Page as ApiPage
from gateway.services import Services

PATH = "/dashboard/audit"
PAGE_SIZE = 50
MAX_DOWNLOAD = 10_000
_MONEY = "_nanousd"
_KNOWN = ("tenant", "actor", "action", "object", "from", "to", "after")
_LEADS_TO = {
    "invoice": "/dashboard/invoices/{}",
    "credit_note": "/dashboard/invoices/{}",
    "billing_account": "/dashboard/accounts/{}",
    "tenant": "/dashboard/tenants/{}",
    "adapter": "/dashboard/adapters/{}",
}
"""First word of an action -> the page that shows its object."""


async def show_audit(request: Request, services: Services, visitor: Visitor) -> Response:
    query = query_of(PATH, visitor.asked(request), _KNOWN)
    page = await _ask(services, visitor, query, limit=PAGE_SIZE, after=query["after"] or None)
    return render(
        "audit.html",
        visitor=visitor,
        query=query,
        tenant_id=visitor.shown_tenant(query["tenant"]),
        page=page,
        actors=await _names_of_keys(services.sessions, page.data),
        place_of=place_of,
        details=details,
        is_filtered=any(query[name] for name in _KNOWN),
        now=utc_now(),
    )


async def download_audit(request: Request, services: Services, visitor: Visitor) -> Response:
    """The same entries as CSV, at most MAX_DOWNLOAD."""
    query, after = query_of(PATH, visitor.asked(request), _KNOWN), None
    text = io.StringIO()
    writer = csv.DictWriter(text, list(api.AuditView.model_fields))
    writer.writeheader()
    for _ in range(MAX_DOWNLOAD // MAX_LIMIT):
        page = await _ask(services, visitor, query, limit=MAX_LIMIT, after=after)
        writer.writerows({name: cell(value) for name, value in _flat(entry).items()} for entry in page.data)
        after = page.next
        if after is None:
            break
    return download(text.getvalue(), "text/csv; charset=utf-8", "audit.csv")


def place_of(entry: api.AuditView) -> str:
    """The page that shows the entry's object; "" if it has none, or none any more."""
    place = _LEADS_TO.get(entry.action.partition(".")[0], "")
    return "" if entry.action.endswith(".delete") else place.format(entry.object_id)


def details(entry: api.AuditView) -> list[tuple[str, str]]:
    """(name, text) of what the entry tells; a changed field shows its value before and after."""
    told = {name: _text(name, value) for name, value in entry.detail.items() if value is not None}
    if entry.before is not None and entry.after is not None:
        for name, value in entry.after.items():
            told[name] = f"{_text(name, entry.before[name])} → {_text(name, value)}"
    return [(name.removesuffix(_MONEY).replace("_", " "), value) for name, value in told.items()]


async def _ask(
    services: Services, visitor: Visitor, query: Query, *, limit: int, after: str | None
) -> ApiPage[api.AuditView]:
    tenant_id = visitor.shown_tenant(query["tenant"])
    asked = api.asked_entries(
        visitor.principal,
        tenant_id=UUID(tenant_id) if tenant_id else None,
        actor_key_id=_key_id(query["actor"]),
        actor_person=query["actor"] if query["actor"] and _key_id(query["actor"]) is None else None,
        action=query["action"] or None,
        object_id=query["object"] or None,
        start=typed_moment(query["from"], visitor.zone, param="from"),
        end=typed_moment(query["to"], visitor.zone, param="to"),
    )
    page = PageRequest(limit=limit, after=after)
    return await api.list_entries(visitor.principal, services.sessions, page, asked, newest_first=True)


async def _names_of_keys(sessions: Sessions, entries: Iterable[api.AuditView]) -> dict[UUID, str]:
    ids = {entry.actor_key_id for entry in entries if entry.actor_key_id is not None}
    async with sessions() as session:
        rows = await session.execute(select(ApiKey.id, ApiKey.name, ApiKey.prefix).where(ApiKey.id.in_(ids)))
        return {key_id: f"{name} ({prefix})" for key_id, name, prefix in rows}


def _key_id(asked: str) -> UUID | None:
    """None for a person's email or subject."""
    try:
        return UUID(asked)
    except ValueError:
        return None


def _flat(entry: api.AuditView) -> Mapping[str, object]:
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
        for name, value in entry.model_dump(mode="json").items()
    }


def _text(name: str, value: object) -> str:
    if value is None:
        return "–"
    if name.endswith(_MONEY) and isinstance(value, int):
        return exact_money(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


PAGES = (
    Page("/audit", show_audit, who=ADMINS, label="Audit"),
    Page("/audit.csv", download_audit, who=ADMINS),
)
