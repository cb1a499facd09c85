"""`GET /health`, `/ready`, `/load` and `/metrics`."""

import asyncio
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import ErrorType, ProtocolError
from protocol.ids import make_uuid7
from worker.engine.request import EngineRequest, SamplingParams
from worker.server.replica import Replica

STALLED_AFTER_S = 120.0
"""A step of a long prompt on a slow machine takes many seconds; a busy worker must not be killed for it."""
PROOF_S = 5.0
"""How long a completion, or tokens generated for any request, proves that the next completion would succeed."""
_PROBE_TOKENS = 3
_PROBE_DEADLINE_S = 60.0


class Unhealthy(ProtocolError):
    status = 503
    type: ErrorType = "server_error"


class Readiness:
    """Ready: a real completion succeeded or tokens were generated recently. Concurrent probes share one completion."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._proven_at = float("-inf")
        self._num_tokens = 0

    async def prove(self, replica: Replica) -> None:
        """Raises Draining, Unhealthy or an EngineError."""
        replica.check_accepting()
        async with self._lock:
            num_tokens = replica.engine.report().completion_tokens_total
            if time.monotonic() - self._proven_at < PROOF_S or num_tokens > self._num_tokens > 0:
                self._note(num_tokens)
                return
            try:
                async with asyncio.timeout(_PROBE_DEADLINE_S):
                    await _complete(replica)
            except TimeoutError:
                raise Unhealthy(f"no completion within {_PROBE_DEADLINE_S:.0f} s", code="not_ready") from None
            self._note(replica.engine.report().completion_tokens_total)

    def _note(self, num_tokens: int) -> None:
        if num_tokens > self._num_tokens:
            self._proven_at = time.monotonic()
        self._num_tokens = num_tokens


async def health(request: Request) -> Response:
    """Alive: the step loop, which also turns when idle, turned recently."""
    replica: Replica = request.app.state.replica
    age_s = time.monotonic() - replica.engine.report().last_step_at
    if age_s > STALLED_AFTER_S:
        raise Unhealthy(f"the engine has made no step for {age_s:.0f} s", code="engine_stalled")
    return Response(b'{"status":"ok"}', media_type="application/json")


async def ready(request: Request) -> Response:
    await request.app.state.readiness.prove(request.app.state.replica)
    return Response(b'{"status":"ready"}', media_type="application/json")


async def load(request: Request) -> Response:
    replica: Replica = request.app.state.replica
    return Response(msgspec.json.encode(replica.load_report()), media_type="application/json")


async def metrics(request: Request) -> Response:
    replica: Replica = request.app.state.replica
    return Response(replica.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _complete(replica: Replica) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=_PROBE_TOKENS, ignore_eos=True)
    request = EngineRequest(
        request_id=f"ready-{make_uuid7(time.time_ns() // 1_000_000)}", prompt_ids=[0], sampling=sampling, priority=0
    )
    tokens = replica.engine.generate(request)
    try:
        async for _ in tokens:
            pass
    finally:
        tokens.close()
