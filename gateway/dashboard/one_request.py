"""One request from start to end: steps, routing decision, tokens, price lines, and how it failed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.dashboard.pages import Page
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.http.errors import NotFound
from gateway.metering.queries import Row
from gateway.metering.windows import Window
from gateway.services import Services

_STEPS = (
    ("authenticate", "key known"),
    ("admit", "limits passed"),
    ("queue", "waited at the worker"),
    ("first_token", "first token"),
    ("end", "last token, accounts closed"),
)
_AROUND = timedelta(minutes=10)
"""The margin around the time in a request's id, because the clocks of gateways differ."""
_EVER = Window(datetime(2000, 1, 1, tzinfo=UTC), datetime(2199, 1, 1, tzinfo=UTC))


@dataclass(frozen=True)
class Step:
    """start and width: percent of the request's whole time."""

    label: str
    start: float
    width: float
    ms: float


async def show_request(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises NotFound, also for another tenant's request, and Unavailable."""
    request_id = str(request.path_params["request_id"])
    row = await services.usage.request(_window_of(request_id), request_id, tenant_id=visitor.shown_tenant(""))
    if row is None:
        raise NotFound(f"there is no request {request_id[:80]!r} of yours; a new one stands here after a second")
    return render(
        "request.html",
        visitor=visitor,
        row=row,
        steps=steps_of(row),
        decision=_decision_of(row),
        price_lines=[_fields(line) for line in row["price_lines"]],
    )


def steps_of(row: Row) -> list[Step]:
    """The steps in order. A step without a recorded time becomes part of the next one."""
    told = {name: value for name, value in _fields(row["steps_ms"]).items() if value is not None}
    total = max([*told.values(), row["total_latency_ms"], 0.001])
    steps, before = [], 0.0
    for name, label in _STEPS:
        if name in told:
            at = max(before, float(told[name]))
            steps.append(Step(label, 100 * before / total, 100 * (at - before) / total, at - before))
            before = at
    return steps


def _window_of(request_id: str) -> Window:
    try:
        parsed = UUID(request_id)
        moment = datetime.fromtimestamp((parsed.int >> 80) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return _EVER
    return Window(moment - _AROUND, moment + _AROUND) if parsed.version == 7 else _EVER


def _decision_of(row: Row) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(row["decision"] or "{}")
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _fields(value: Any) -> Mapping[str, Any]:
    """The fields of a ClickHouse named tuple, which the client returns as a mapping. Empty for anything else."""
    return value if isinstance(value, Mapping) else {}


PAGES = (Page("/requests/{request_id}", show_request),)
