"""Do gateways, ClickHouse and workers count the same? By tenant and hour, with advice on differences."""

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import reconciliation as api
from gateway.clock import utc_now
from gateway.dashboard.links import query_of
from gateway.dashboard.pages import OPERATORS, Page
from gateway.dashboard.ranges import PRESETS, range_of
from gateway.dashboard.rendering import render
from gateway.dashboard.visitors import Visitor
from gateway.http.errors import InvalidRequest
from gateway.services import Services

PATH = "/dashboard/reconciliation"
MAX_SPAN = timedelta(days=3)
"""Every event is counted anew, without its copies. At 10 million events a month, a week takes most of a second."""
MAX_ROWS = 1000
_PRESETS = [preset for name, preset in PRESETS.items() if name in ("24h", "3d")]


async def show_reconciliation(request: Request, services: Services, visitor: Visitor) -> Response:
    """Raises Unavailable while ClickHouse is away, and InvalidRequest for an invalid range."""
    query = query_of(PATH, visitor.asked(request), ("range", "from", "to", "all"))
    now = utc_now()
    chosen = range_of(query["range"], query["from"], query["to"], zone=visitor.zone, now=now)
    window = chosen.window
    if window.end - window.start > MAX_SPAN + timedelta(days=1):
        raise InvalidRequest(
            f"choose at most {MAX_SPAN.days} days: every hour is counted anew; `tiergate reconcile` takes longer ranges"
        )
    found = await api.reconciliation(
        visitor.principal,
        services,
        start=window.start.isoformat(),
        end=window.end.isoformat(),
        all_hours=query["all"] == "yes",
    )
    return render(
        "reconciliation.html",
        visitor=visitor,
        query=query,
        chosen=chosen,
        presets=_PRESETS,
        found=found,
        events=list(reversed(found.events))[:MAX_ROWS],
        tokens=list(reversed(found.tokens))[:MAX_ROWS],
        max_rows=MAX_ROWS,
        now=now,
    )


PAGES = (Page("/reconciliation", show_reconciliation, who=OPERATORS, label="Reconciliation"),)
