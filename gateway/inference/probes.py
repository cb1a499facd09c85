"""`/health`, `/ready` and `/metrics` for operators and orchestrators; they need no tenant's key."""

import asyncio
import os

from fastapi import APIRouter, Request
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse, Response

from gateway.clock import utc_now
from gateway.inference.scrapers import check_scraper
from gateway.metric_snapshots import Snapshot, render
from gateway.metrics import Metrics, as_scraped
from gateway.services import Services, ServicesDep
from router.fleet import Fleet, usable_members

router = APIRouter(tags=["probes"])

READY_DEADLINE_S = 2.0


@router.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "not ready; `missing` names what is missing"}})
async def ready(services: ServicesDep) -> JSONResponse:
    """Tell whether a request could be served and billed.

    Needs the database, a usable replica and a writable outbox. A gateway that is draining is not ready.
    """
    missing = [name for name, is_there in (await _checks(services)).items() if not is_there]
    if missing:
        return JSONResponse({"status": "not ready", "missing": missing}, 503, {"retry-after": "1"})
    return JSONResponse({"status": "ready"})


@router.get(
    "/metrics",
    responses={
        401: {"description": "the key is missing or wrong"},
        403: {"description": "no key is set, and the request does not come from the gateway's own machine"},
    },
)
async def metrics(request: Request, services: ServicesDep) -> Response:
    """Prometheus metrics of all processes of this gateway, whichever of them answers.

    Send the key in `TIERGATE_METRICS_KEY` as `Authorization: Bearer KEY`. If none is set, only clients on the gateway's
    own machine may read the metrics.
    """
    check_scraper(request, services.settings.metrics_key)
    await _look_at_outboxes(services)
    shown = await services.add_siblings(measured_here(services))
    return Response(render(as_scraped(shown)), media_type="text/plain; version=0.0.4; charset=utf-8")


def measured_here(services: Services) -> Snapshot:
    """This process's metrics now."""
    shown = services.metrics
    shown.is_limiter_local.set(services.limiter.is_local)
    shown.local_decisions.set(services.limiter.num_decided_here)
    shown.waiting_settlements.set(len(services.limiter.settlements))
    shown.under_way.set(services.outbox.num_under_way)
    shown.is_outbox_failing.set(services.outbox.failure is not None)
    _show_fleet(shown, services.registry.fleet)
    shown.outbox_max_bytes.set(services.room.max_bytes)
    shown.outbox_free_bytes.set(services.room.free_bytes)
    return shown.snapshot()


def _show_fleet(shown: Metrics, fleet: Fleet) -> None:
    # Cleared first, so that a removed pool does not keep its last values.
    shown.replicas.clear()
    shown.pool_requests.clear()
    for pool in fleet.pools.values():
        loads = [member.load for member in pool.members if member.load is not None]
        shown.replicas.labels(pool.name).set(len(usable_members(pool)))
        # The counters exist from the start, so that the first retry shows as an increase.
        shown.retries.labels(pool.name)
        shown.continuations.labels(pool.name)
        shown.pool_requests.labels(pool.name, "running").set(sum(load.num_running for load in loads))
        shown.pool_requests.labels(pool.name, "waiting").set(sum(load.num_waiting for load in loads))


async def _look_at_outboxes(services: Services) -> None:
    waiting, shown = await services.backlog.read(), services.metrics
    shown.refused_rows.set(waiting.num_refused)
    shown.waiting_events.set(waiting.num_events)
    shown.outbox_lag.set(waiting.lag_s(utc_now()))
    shown.outbox_bytes.set(waiting.num_bytes)


async def _checks(services: Services) -> dict[str, bool]:
    return {
        "draining": not services.is_draining(),
        "database": await _is_database_there(services),
        "replica": any(usable_members(pool) for pool in services.registry.fleet.pools.values()),
        "outbox": services.outbox.failure is None
        and services.room.shortage is None
        and os.access(services.settings.data_dir, os.W_OK),
    }


async def _is_database_there(services: Services) -> bool:
    try:
        async with asyncio.timeout(READY_DEADLINE_S), services.sessions() as session:
            await session.execute(text("SELECT 1"))
    except (SQLAlchemyError, OSError, TimeoutError):
        return False
    return True
