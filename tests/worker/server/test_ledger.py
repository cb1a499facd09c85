"""What a worker counted, by tenant and hour."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from protocol.ids import make_uuid7
from protocol.ledger import Ledger, LedgerRow
from tests.support.gateways import WORKER_KEY
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.workers import WorkerProcess

HOUR_S = 1_772_625_600
BODY = {"model": "tiny", "prompt": "Hi there", "max_tokens": 9, "ignore_eos": True}


@pytest.fixture
def keyed(checkpoint: Path, tmp_path: Path) -> Iterator[RunningWorker]:
    with running_worker(checkpoint, api_key="secret-key", ledger=tmp_path / "ledger.sqlite") as running:
        yield running


def read(client: httpx.Client, **query: int) -> list[LedgerRow]:
    reply = client.get("/ledger", params=query).raise_for_status()
    return [row for row in msgspec.json.decode(reply.content, type=Ledger).rows if row.tenant_id]


def test_tokens_are_counted_by_tenant_and_by_the_hour_that_the_gateways_id_tells(keyed: RunningWorker) -> None:
    with keyed.client() as client:
        prompt_tokens = 0
        for tenant, at_s, fields in (("a", HOUR_S, {}), ("a", HOUR_S + 3599, {"stream": True}), ("b", HOUR_S - 1, {})):
            headers = {"X-Tiergate-Tenant": tenant, "X-Request-Id": str(make_uuid7(at_s * 1000))}
            reply = client.post("/v1/completions", json=BODY | fields, headers=headers).raise_for_status()
            prompt_tokens = prompt_tokens if fields else reply.json()["usage"]["prompt_tokens"]
        counted = [
            (row.tenant_id, row.hour_s, row.prompt_tokens, row.completion_tokens, row.discarded_tokens)
            for row in sorted(read(client), key=lambda row: row.tenant_id)
        ]
        assert counted == [
            ("a", HOUR_S, 2 * prompt_tokens, 18, 0),
            ("b", HOUR_S - 3600, prompt_tokens, 9, 0),
        ]
        assert [row.tenant_id for row in read(client, since=HOUR_S)] == ["a"]
        assert client.get("/ledger", params={"since": "yesterday"}).status_code == 400
    assert httpx.get(f"{keyed.origin}/ledger").status_code == 401


def test_the_ledger_survives_kill_9(tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {WORKER_KEY}", "X-Tiergate-Tenant": "a"}
    ledger = ("--ledger", str(tmp_path / "ledger.sqlite"))
    told = 0
    for _ in range(2):
        worker = WorkerProcess(tmp_path, pool="small", redis_url=f"redis://127.0.0.1:{free_port()}", options=ledger)
        worker.wait_until_ready()
        body = BODY | {"model": worker.model_id, "stream": True}
        with httpx.Client(base_url=worker.url, headers=headers, timeout=30) as client:
            client.post("/v1/completions", json=body).raise_for_status()
            told += 9
            deadline = time.monotonic() + 30
            # A second one is killed in mid-answer, when some of it has been counted.
            sent = body | {"max_tokens": 100}
            with client.stream("POST", "/v1/completions", json=sent) as reply:
                for _line in reply.iter_lines():
                    now = sum(row.completion_tokens for row in read(client))
                    if now > told:
                        break
                    assert time.monotonic() < deadline
                worker.process.kill()
            worker.stop()
        told = now
    worker = WorkerProcess(tmp_path, pool="small", redis_url=f"redis://127.0.0.1:{free_port()}", options=ledger)
    worker.wait_until_ready()
    with httpx.Client(base_url=worker.url, headers=headers) as client:
        rows = read(client)
    worker.stop()
    assert sum(row.completion_tokens for row in rows) >= told
    assert len({row.worker_id for row in rows}) == 2
