"""A request whose computation breaks gets an error, and the worker goes on."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.running_worker import RunningWorker, running_worker
from tests.support.scripted import make_scripted_checkpoint, poison
from worker.server.app import create_app
from worker.server.health import Readiness

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": 0}
# Greedy: a token drawn at random may be the poisoned one.
OTHER = {"model": "tiny", "prompt": "a b c", "max_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    folder: Path = make_scripted_checkpoint(
        tmp_path_factory.mktemp("scripted") / "m", ["Good", " so far", " bad", " x"]
    )
    poison(folder, " bad")
    with running_worker(folder) as running:
        yield running


def test_a_stream_ends_with_an_error_and_without_done(poisoned: RunningWorker) -> None:
    with poisoned.client() as client:
        reply = client.post("/v1/chat/completions", json=ASK | {"stream": True})
        assert reply.status_code == 200
        assert "Good" in reply.text
        last = reply.text.strip().splitlines()[-1]
        assert last.startswith('data: {"error":{"message":')
        assert '"code":"step_failed"' in last
        assert "[DONE]" not in reply.text
        assert client.post("/v1/completions", json=OTHER).status_code == 200


def test_the_official_client_raises(poisoned: RunningWorker) -> None:
    with openai.OpenAI(base_url=poisoned.base_url, api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="not finite"):
            list(client.chat.completions.create(**ASK, stream=True))
        with pytest.raises(openai.InternalServerError, match="not finite"):
            client.chat.completions.create(**ASK)


def test_what_is_not_finite_is_counted(poisoned: RunningWorker) -> None:
    with poisoned.client() as client:
        before = count_nan_rows(client)
        assert client.post("/v1/chat/completions", json=ASK).status_code == 500
        assert count_nan_rows(client) == before + 1


def test_whatever_is_refused_or_breaks_is_counted_once(poisoned: RunningWorker) -> None:
    with poisoned.client() as client:
        broken, refused = count_failures(client, "step_failed"), count_failures(client, "invalid_request")
        client.post("/v1/chat/completions", json=ASK)
        client.post("/v1/chat/completions", json=ASK | {"stream": True})
        # The first is refused by the engine, the second before it.
        client.post("/v1/completions", json=OTHER | {"prompt": [99_999]})
        client.post("/v1/completions", json=OTHER | {"n": 0})
        assert count_failures(client, "step_failed") == broken + 2
        assert count_failures(client, "invalid_request") == refused + 2


async def test_a_bug_closes_the_connection_and_is_counted(poisoned: RunningWorker) -> None:
    broken = dataclasses.replace(poisoned.replica, bundle=cast(Any, None))
    transport = httpx.ASGITransport(create_app(broken, Readiness()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        reply = await client.post("/v1/completions", json=OTHER)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert reply.headers["connection"] == "close"
    with poisoned.client() as http:
        assert count_failures(http, "internal_error") == 1


def count_nan_rows(client: httpx.Client) -> float:
    return read_metrics(client)["tiergate_nan_rows"].samples[0].value


def count_failures(client: httpx.Client, code: str) -> float:
    samples = read_metrics(client)["tiergate_request_failure"].samples
    return sum(each.value for each in samples if each.name.endswith("_total") and each.labels["code"] == code)


def read_metrics(client: httpx.Client) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}


def test_a_failure_before_the_first_token_has_a_status_of_its_own(poisoned: RunningWorker) -> None:
    with poisoned.client() as client:
        # The prompt itself ends with the poisoned token.
        prompt = client.post("/tokenize", json={"prompt": " bad"}).json()["tokens"]
        reply: httpx.Response = client.post("/v1/completions", json=OTHER | {"prompt": prompt, "stream": True})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "step_failed")
