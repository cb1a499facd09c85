"""`/admin/v1/workers`: every replica that this gateway knows, its state as seen from here, and draining it."""

import time
from bisect import bisect_right
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel

from gateway.admin.names import Draft
from gateway.clock import utc_now
from gateway.domain.audit.service import record
from gateway.http.errors import NotFound, Unavailable
from gateway.http.pages import Page, PageDep
from gateway.redis_client import AWAY
from gateway.services import PlatformDep, Services, ServicesDep
from router.fleet import Member, Pool

router = APIRouter(prefix="/workers", tags=["workers"])


class WorkerPatch(Draft):
    """With `is_drained` no gateway sends the replica new requests until it is taken back; those running there finish.
    The setting belongs to the replica's address, so it also holds for a worker that is restarted there."""

    is_drained: bool


class WorkerView(BaseModel):
    worker_id: str
    pool: str
    model: str
    url: str
    engine: str
    is_healthy: bool
    is_drained: bool
    """Drained by an operator."""
    state: str
    """The circuit breaker: `closed`, `open`, `half-open` or `starting` (docs/members.md)."""
    load: dict[str, Any] | None
    """The worker's own report; servers of other engines send none."""


@router.get("")
async def list_workers(
    _admin: PlatformDep,
    services: ServicesDep,
    page: PageDep,
    pool: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[WorkerView]:
    pools = [each for each in services.registry.fleet.pools.values() if pool in (None, each.name)]
    found = sorted(((each, member) for each in pools for member in each.members), key=_id_of)
    if page.after is not None:
        found = found[bisect_right(found, page.after, key=_id_of) :]
    shown = found[: page.limit]
    return Page(
        data=[_view(services, *each) for each in shown], next=_id_of(shown[-1]) if len(shown) < len(found) else None
    )


@router.patch("/{worker_id:path}")
async def patch_worker(worker_id: str, patch: WorkerPatch, admin: PlatformDep, services: ServicesDep) -> WorkerView:
    """Drain a replica before it is stopped or changed, or take it back into service; platform administrators only.

    503 while Redis, through which all gateways learn of it, is away.
    """
    found = services.registry.find(worker_id)
    if found is None:
        raise NotFound("there is no such replica; GET /admin/v1/workers lists them")
    pool, member = found
    if member.is_drained != patch.is_drained:
        action = "worker.drain" if patch.is_drained else "worker.undrain"
        detail = {"pool": pool.name, "url": member.url}
        async with services.sessions() as session, session.begin():
            await record(
                session, admin, action, object_id=worker_id[:200], tenant_id=None, now=utc_now(), detail=detail
            )
            try:
                await services.registry.drain(member, is_drained=patch.is_drained)
            except AWAY as error:
                raise Unavailable("Redis, which tells all gateways, is away; try again", retry_after_s=1) from error
    pool, member = services.registry.find(worker_id) or found
    return _view(services, pool, member)


def _id_of(found: tuple[Pool, Member]) -> str:
    return found[1].worker_id


def _view(services: Services, pool: Pool, member: Member) -> WorkerView:
    return WorkerView(
        worker_id=member.worker_id,
        pool=pool.name,
        model=pool.model_id,
        url=member.url,
        engine=member.engine,
        is_healthy=member.is_healthy,
        is_drained=member.is_drained,
        state=services.registry.health.state(member.worker_id, time.monotonic()),
        load=None if member.load is None else msgspec.to_builtins(member.load),
    )
