"""With a key: who may do what."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.running_worker import RunningWorker, running_worker

BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 2}


@pytest.fixture(scope="module")
def keyed(checkpoint: Path) -> Iterator[RunningWorker]:
    with running_worker(checkpoint, api_key="secret-key", other_keys=("the-other-key",), pool="small") as running:
        yield running


@pytest.mark.parametrize("authorization", [None, "Bearer nonsense", "secret-key", "Basic YTpi", "Bearer sécret"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/load"),
        ("GET", "/tokenizer"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
    ],
)
def test_without_the_key_nothing_is_answered(
    keyed: RunningWorker, authorization: str | None, method: str, path: str
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode()}
    reply = httpx.request(method, f"{keyed.origin}{path}", headers=headers, json=BODY if method == "POST" else None)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_key(keyed: RunningWorker, path: str) -> None:
    assert httpx.get(f"{keyed.origin}{path}").status_code == 200


@pytest.mark.parametrize("path", ["/load", "/metrics"])
def test_keys_beside_it_are_taken_too(keyed: RunningWorker, path: str) -> None:
    headers = {"Authorization": "Bearer the-other-key"}
    assert httpx.get(f"{keyed.origin}{path}", headers=headers).status_code == 200


def test_with_the_key_the_platforms_fields_are_honoured(keyed: RunningWorker) -> None:
    headers = {"X-Tiergate-Tenant": "t", "X-Tiergate-Weight": "2.5", "X-Tiergate-Deadline-Ms": "30000"}
    with keyed.client() as client:
        reply = client.post("/v1/completions", json=BODY | {"priority": 0, "cache_salt": "t"}, headers=headers)
        assert reply.status_code == 200, reply.text
        late = client.post("/v1/completions", json=BODY, headers={"X-Tiergate-Deadline-Ms": "0.0001"})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        bad = client.post("/v1/completions", json=BODY, headers={"X-Tiergate-Weight": "-1"})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-tiergate-weight")


def test_a_salt_keeps_caches_apart(keyed: RunningWorker) -> None:
    body = BODY | {"prompt": "The quick brown fox jumps over the lazy dog. " * 4}

    def cached_tokens(salt: str) -> int:
        with keyed.client() as client:
            reply = client.post("/v1/completions", json=body | {"cache_salt": salt}).raise_for_status()
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached_tokens("a"), cached_tokens("b")] == [0, 0]
    assert cached_tokens("a") > 0


def test_without_a_key_the_platforms_fields_change_nothing(worker: RunningWorker) -> None:
    with worker.client() as client:
        headers = {"X-Tiergate-Deadline-Ms": "0.0001", "X-Tiergate-Weight": "x"}
        assert client.post("/v1/completions", json=BODY | {"priority": 0}, headers=headers).status_code == 200
