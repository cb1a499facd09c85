"""Every answer tells the load, and `/ready` proves itself anew."""

import httpx
import msgspec
import pytest

from protocol.load import LOAD_HEADER, LoadReport, with_header
from tests.support.running_worker import RunningWorker
from worker.server.health import PROOF_S, Readiness

BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 2}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/completions", 200), ("GET", "/v1/models", 200), ("GET", "/nowhere", 404), ("GET", "/health", 200)],
)
def test_every_answer_tells_the_load(
    http: httpx.Client, worker: RunningWorker, method: str, path: str, status: int
) -> None:
    reply = http.request(method, path, json=BODY if method == "POST" else None)
    assert reply.status_code == status
    report = worker.replica.load_report()
    fresh: LoadReport = with_header(report, reply.headers[LOAD_HEADER].encode())
    assert fresh.num_waiting == 0 and not fresh.is_draining
    assert 0 < fresh.num_free_blocks <= report.num_blocks


async def test_readiness_is_proven_by_a_completion_now_and_then(worker: RunningWorker) -> None:
    def num_tokens() -> int:
        return worker.replica.engine.report().completion_tokens_total

    readiness, before = Readiness(), num_tokens()
    for _ in range(3):
        await readiness.prove(worker.replica)
    first = num_tokens()
    assert first > before, "a real completion, once for all who ask at about the same time"
    readiness._proven_at -= PROOF_S
    await readiness.prove(worker.replica)
    assert num_tokens() > first


async def test_what_is_made_for_others_is_proof_enough(worker: RunningWorker) -> None:
    readiness = Readiness()
    await readiness.prove(worker.replica)
    async with httpx.AsyncClient(base_url=worker.origin) as http:
        (await http.post("/v1/completions", json=BODY)).raise_for_status()
    readiness._proven_at -= PROOF_S
    before = worker.replica.engine.report().completion_tokens_total
    await readiness.prove(worker.replica)
    assert worker.replica.engine.report().completion_tokens_total == before


def test_the_report_tells_what_an_adapter_has_to_fit(worker: RunningWorker) -> None:
    base = msgspec.json.decode(msgspec.json.encode(worker.load()), type=LoadReport).adapter_base
    assert base is not None and base.num_layers == 2
    assert (base.shapes["q_proj"], base.shapes["k_proj"], base.shapes["down_proj"]) == ((64, 64), (32, 64), (64, 128))
