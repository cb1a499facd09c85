"""Requests, newest first: filtered, paged, and as CSV."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from gateway.clock import utc_now
from gateway.dashboard.links import Query, query_of
from gateway.dashboard.names import Names
from gateway.dashboard.pages import Page
from gateway.dashboard.ranges import PRESETS, Range, range_of
from gateway.dashboard.rendering import download, render
from gateway.dashboard.spreadsheets import cell
from gateway.dashboard.visitors import Visitor
from gateway.http.errors import InvalidRequest
from gateway.metering.queries import UsagePage
from gateway.metering.statements import RequestFilter
from gateway.services import Services

PAGE_SIZE = 50
MAX_DOWNLOAD = 10_000
PATH = "/dashboard/requests"
STATUSES = ("ok", "error", "cancelled", "lost")
_FILTERS = ("status", "code", "reason", "model", "adapter", "tier", "key", "user", "slower_ms")
_KNOWN = ("range", "from", "to", "tenant", *_FILTERS, "after")
_COLUMNS = (
    *("timestamp", "request_id", "client_request_id", "tenant_id", "key_id", "user_id", "session_id", "tier"),
    *("endpoint", "requested_model", "model_version", "pool", "route_reason", "complexity", "adapter_id", "worker_id"),
    *("status", "finish_reason", "error_code", "error_message", "num_attempts", "prompt_tokens"),
    *("cached_prompt_tokens", "completion_tokens", "ttft_ms", "total_latency_ms", "queue_ms", "cost_nanousd"),
)


@dataclass(frozen=True)
class _Asked:
    query: Query
    chosen: Range
    tenant_id: str | None
    filters: RequestFilter


async def list_requests(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises Unavailable, and InvalidRequest for an invalid filter or range."""
    asked = _read(request, visitor)
    page = await _ask(services, asked, limit=PAGE_SIZE)
    return render(
        "requests.html",
        visitor=visitor,
        query=asked.query,
        chosen=asked.chosen,
        presets=PRESETS.values(),
        statuses=STATUSES,
        tenant_id=asked.tenant_id,
        page=page,
        is_filtered=asked.filters != RequestFilter(),
        now=utc_now(),
    )


async def download_requests(request: Request, services: Services, visitor: Visitor) -> Response:
    """The same requests as CSV, at most MAX_DOWNLOAD."""
    asked = _read(request, visitor)
    page = await _ask(services, asked, limit=MAX_DOWNLOAD)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    writer.writerows([cell(row[name]) for name in _COLUMNS] for row in page.rows)
    return download(text.getvalue(), "text/csv; charset=utf-8", "requests.csv")


def _read(request: Request, visitor: Visitor) -> _Asked:
    query = query_of(PATH, visitor.asked(request), _KNOWN)
    chosen = range_of(query["range"], query["from"], query["to"], zone=visitor.zone, now=utc_now())
    status, slower = query["status"] or None, query["slower_ms"]
    if status is not None and status not in STATUSES:
        raise InvalidRequest(f"status: {status[:40]!r} is not one of {', '.join(STATUSES)}", param="status")
    if slower and not (slower.isdecimal() and slower.isascii() and len(slower) <= 8):
        raise InvalidRequest("slower than: send a whole number of milliseconds", param="slower_ms")
    filters = RequestFilter(
        status=status,
        error_code=query["code"] or None,
        route_reason=query["reason"] or None,
        model=query["model"] or None,
        adapter_id=_adapter_id(query["adapter"], visitor.names),
        tier=query["tier"] or None,
        key_id=query["key"] or None,
        user_id=query["user"] or None,
        min_latency_ms=int(slower) if slower else None,
    )
    return _Asked(query, chosen, visitor.shown_tenant(query["tenant"]), filters)


async def _ask(services: Services, asked: _Asked, *, limit: int) -> UsagePage:
    return await services.usage.usage(
        asked.chosen.window,
        tenant_id=asked.tenant_id,
        group_by="request",
        limit=limit,
        after=asked.query["after"] or None,
        asked=asked.filters,
    )


def _adapter_id(asked: str, names: Names) -> str | None:
    """The id of the adapter of this name; other text is taken for an id."""
    ids: Iterable[str] = (known for known, name in names.adapters.items() if name == asked)
    return next(iter(ids), asked or None)


PAGES = (Page("/requests", list_requests, label="Requests"), Page("/requests.csv", download_requests))
