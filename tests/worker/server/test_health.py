"""`GET /health` tells a stalled engine from a busy or idle one."""

from pathlib import Path

import httpx

from worker.server.app import create_app
from worker.server.health import STALLED_AFTER_S, Readiness
from worker.server.replica_loading import load_replica
from worker.settings import WorkerSettings


async def test_an_engine_that_has_made_no_step_for_long_is_not_alive(checkpoint: Path) -> None:
    replica = load_replica(WorkerSettings(model=checkpoint, num_threads=1))
    transport = httpx.ASGITransport(create_app(replica, Readiness()))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        replica.engine.last_step_at -= STALLED_AFTER_S / 2
        assert (await client.get("/health")).json() == {"status": "ok"}
        replica.engine.last_step_at -= STALLED_AFTER_S
        reply = await client.get("/health")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_stalled")
