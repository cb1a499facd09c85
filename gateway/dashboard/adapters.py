"""Adapters: the list, and one adapter with its versions, whether it fits, where it is loaded and how it was used."""

from dataclasses import dataclass
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import adapters as api
from gateway.admin.adapters import AdapterView
from gateway.admin.audit import asked_entries, list_entries
from gateway.clock import utc_now
from gateway.dashboard.links import query_of
from gateway.dashboard.pages import ADMINS, Page
from gateway.dashboard.ranges import PRESETS
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.http.errors import NotFound, Unavailable
from gateway.http.pages import PageRequest
from gateway.metering.queries import Row
from gateway.services import Services

PATH = "/dashboard/adapters"
PAGE_SIZE = 50
MAX_HISTORY = 50
MAX_ADAPTERS = 1000
"""How many adapters' usage is read to find that of one."""
_USED = "30d"


@dataclass(frozen=True)
class Place:
    """How many replicas serve a variant, and how many of those hold it in memory.

    names: the replicas that hold it in memory; empty unless an operator asks.
    """

    num_serving: int
    num_resident: int
    names: list[str]


async def list_adapters(request: Request, services: Services, visitor: Visitor) -> Response:
    query = query_of(PATH, visitor.asked(request), ("after",))
    page = PageRequest(limit=PAGE_SIZE, after=query["after"] or None)
    found = await api.list_adapters(visitor.principal, services.sessions, page)
    return render("adapters.html", visitor=visitor, query=query, page=found, now=utc_now())


async def show_adapter(request: Request, services: Services, visitor: Visitor) -> Response:
    adapter = await read_asked(request, services, visitor)
    entries = asked_entries(visitor.principal, object_id=str(adapter.id), action="adapter")
    newest = PageRequest(limit=MAX_HISTORY, after=None)
    history = await list_entries(visitor.principal, services.sessions, newest, entries, newest_first=True)
    return render(
        "adapter.html",
        visitor=visitor,
        adapter=adapter,
        places={model: _place(services, visitor, model, name) for model, name in adapter.variants.items()},
        models=other_models(services, adapter),
        history=history.data,
        usage=await _usage(services, visitor, adapter),
        used=_USED,
        may_change=may_change(visitor, adapter),
        now=utc_now(),
    )


async def read_asked(request: Request, services: Services, visitor: Visitor) -> AdapterView:
    """Raises NotFound, also for another tenant's adapter."""
    try:
        adapter_id = UUID(request.path_params["adapter_id"])
    except ValueError:
        raise NotFound("there is no such adapter; it may have been deleted") from None
    return await api.show_adapter(adapter_id, visitor.principal, services.sessions)


def may_change(visitor: Visitor, adapter: AdapterView) -> bool:
    """Only the operator may change an adapter that is for everybody."""
    return visitor.principal.is_platform_admin or adapter.tenant_id == visitor.principal.tenant_id


def chat_models(services: Services) -> list[str]:
    return sorted(model.id for model in services.catalog.current.models.values() if model.kind == "chat")


def other_models(services: Services, adapter: AdapterView) -> list[str]:
    """Base models for which the adapter has no variant."""
    return [model for model in chat_models(services) if model not in adapter.variants]


def _place(services: Services, visitor: Visitor, model_id: str, worker_name: str) -> Place:
    pools = [pool for pool in services.registry.fleet.pools.values() if pool.model_id == model_id]
    members = [member for pool in pools for member in pool.members if member.is_healthy and member.load is not None]
    serving = [member for member in members if member.load is not None and member.load.serves(worker_name)]
    resident = [member for member in serving if member.load is not None and member.load.has_resident(worker_name)]
    names = [member.worker_id for member in resident] if visitor.principal.is_platform_admin else []
    return Place(len(serving), len(resident), names)


async def _usage(services: Services, visitor: Visitor, adapter: AdapterView) -> Row | None:
    """The adapter's usage of the last 30 days; None if usage cannot be read now."""
    window = PRESETS[_USED].until(utc_now(), zone=visitor.zone).window
    tenant_id = visitor.shown_tenant(str(adapter.tenant_id or ""))
    try:
        found = await services.usage.usage(window, tenant_id=tenant_id, group_by="adapter", limit=MAX_ADAPTERS)
    except Unavailable:
        return None
    own = (row for row in found.rows if row["adapter_id"] == str(adapter.id))
    return next(own, {"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost_nanousd": 0})


PAGES = (
    Page("/adapters", list_adapters, who=ADMINS, label="Adapters"),
    Page("/adapters/{adapter_id}", show_adapter, who=ADMINS),
)
