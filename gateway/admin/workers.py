"""`GET /admin/v1/workers`: every replica that this gateway knows, as it sees them."""

import time
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel

from gateway.services import PlatformDep, ServicesDep

router = APIRouter(prefix="/workers", tags=["workers"])


class WorkerView(BaseModel):
    worker_id: str
    pool: str
    model: str
    url: str
    engine: str
    is_healthy: bool
    state: str
    """`closed`, `open`, `half-open` or `starting`, as docs/members.md tells."""
    load: dict[str, Any] | None
    """The worker's own report; foreign servers have none."""


class WorkerList(BaseModel):
    data: list[WorkerView]
    next: None = None


@router.get("")
async def list_workers(_admin: PlatformDep, services: ServicesDep) -> WorkerList:
    now = time.monotonic()
    return WorkerList(
        data=[
            WorkerView(
                worker_id=member.worker_id,
                pool=pool.name,
                model=pool.model_id,
                url=member.url,
                engine=member.engine,
                is_healthy=member.is_healthy,
                state=services.registry.health.state(member.worker_id, now),
                load=None if member.load is None else msgspec.to_builtins(member.load),
            )
            for pool in services.registry.fleet.pools.values()
            for member in pool.members
        ]
    )
