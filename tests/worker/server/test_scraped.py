"""Who may read `/metrics`."""

from pathlib import Path

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from tests.support.running_worker import RunningWorker, running_worker
from worker.server.errors import KeyGate


def scrape(origin: str, key: str | None = None, **headers: str) -> int:
    sent = headers | ({"Authorization": f"Bearer {key}"} if key else {})
    return httpx.get(f"{origin}/metrics", headers=sent).status_code


def test_without_a_key_only_this_machine_reads_metrics(worker: RunningWorker) -> None:
    assert scrape(worker.origin) == 200
    assert scrape(worker.origin, **{"X-Forwarded-For": "10.0.0.7"}) == 403


@pytest.mark.parametrize("key", ["the-worker-key", "the-metrics-key"])
def test_either_key_opens_metrics_and_only_the_workers_the_rest(checkpoint: Path, key: str) -> None:
    with running_worker(checkpoint, api_key="the-worker-key", metrics_key="the-metrics-key") as keyed:
        assert scrape(keyed.origin) == scrape(keyed.origin, "nonsense") == 401
        assert scrape(keyed.origin, key) == 200
        models = httpx.get(f"{keyed.origin}/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert models.status_code == (200 if key == "the-worker-key" else 401)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (("127.0.0.1", 1), 204),
        (("::1", 1), 204),
        (("::ffff:127.0.0.1", 1), 204),
        (("10.0.0.7", 1), 403),
        (("fd00::2", 1), 403),
        (None, 403),
    ],
)
async def test_another_machine_reads_no_metrics_without_a_key(client: tuple[str, int] | None, expected: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [], "client": client}
    await KeyGate(app, keys=(), metrics_key=None, load=lambda: b"0,0,1,0")(scope, receive, send)
    assert sent[0]["status"] == expected
