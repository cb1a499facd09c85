"""A worker that serves adapters of a store by their digest: what was never loaded is fetched by the request itself."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from protocol.artifacts import WEIGHTS_FILE, artifact_name, object_path
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.platform import wait_until
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.stored_adapters import store_adapter

BODY = {"prompt": "Hi there", "max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fetched")


@pytest.fixture(scope="module")
def folders(folder: Path, checkpoint: Path) -> dict[str, Path]:
    """More than a worker has slots for, by the name that they have in the store."""
    made = [make_tiny_adapter(folder / f"adapter-{seed}", checkpoint, seed=seed) for seed in range(40)]
    return {artifact_name(asyncio.run(store_adapter(str(folder / "store"), each))): each for each in made}


@pytest.fixture(scope="module")
def fetching(folder: Path, folders: dict[str, Path], checkpoint: Path) -> Iterator[RunningWorker]:
    url = f"file://{folder / 'store'}"
    with running_worker(checkpoint, artifacts_url=url, artifacts_dir=folder / "cache", kv_blocks=1024) as running:
        yield running


def complete(client: httpx.Client, model: str) -> str:
    reply = client.post("/v1/completions", json={**BODY, "model": model})
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


def test_an_adapter_is_fetched_when_it_is_asked_for_and_answers_as_one_that_was_given(
    fetching: RunningWorker, folders: dict[str, Path], checkpoint: Path
) -> None:
    name, given = next(iter(folders.items()))
    assert fetching.load()["fetches_adapters"] and name not in fetching.load()["adapters"]
    with running_worker(checkpoint, adapters={"given": given}, kv_blocks=1024) as loaded, loaded.client() as client:
        expected, base = complete(client, "given"), complete(client, "tiny")
    with fetching.client() as client:
        assert complete(client, name) == complete(client, name) == expected != base
        vectors = client.post("/v1/embeddings", json={"model": list(folders)[1], "input": "Hi"})
    assert vectors.status_code == 200, vectors.text
    assert {name, list(folders)[1]} <= set(fetching.load()["adapters"])


def test_many_at_once_and_more_than_there_is_room_for_are_all_served(
    fetching: RunningWorker, folders: dict[str, Path]
) -> None:
    with fetching.client() as client, ThreadPoolExecutor(8) as pool:
        alone = {name: complete(client, name) for name in folders}
        names = [*folders, *folders] * 2
        assert list(pool.map(lambda name: complete(client, name), names)) == [alone[name] for name in names]
    assert len(set(alone.values())) > len(folders) // 2


def test_what_is_unloaded_leaves_memory_and_disk_and_comes_back_when_asked(
    fetching: RunningWorker, folders: dict[str, Path], folder: Path
) -> None:
    name = list(folders)[2]
    with fetching.client() as client:
        before = complete(client, name)
        cached = folder / "cache" / name.removeprefix("sha256:")
        assert cached.is_dir()
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": name}).status_code == 200
        wait_until(lambda: not cached.exists(), deadline_s=20)
        assert name not in fetching.load()["adapters"]
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": name}).status_code == 404
        assert complete(client, name) == before


def test_what_the_store_does_not_have_and_what_it_has_wrong_is_told_and_disturbs_nobody(
    fetching: RunningWorker, folders: dict[str, Path], folder: Path, checkpoint: Path
) -> None:
    broken = make_tiny_adapter(folder / "broken", checkpoint, seed=99)
    digest = asyncio.run(store_adapter(str(folder / "store"), broken))
    (folder / "store" / object_path(digest, WEIGHTS_FILE)).write_bytes(b"something else")
    with fetching.client() as client:
        statuses = {}
        for model in (artifact_name("0" * 64), artifact_name(digest), "sha256:x", "nothing"):
            reply = client.post("/v1/completions", json={**BODY, "model": model})
            statuses[model] = (reply.status_code, reply.json()["error"]["code"])
        assert list(statuses.values()) == [
            (404, "model_not_found"),
            (400, "adapter_failed"),
            (404, "model_not_found"),
            (404, "model_not_found"),
        ]
        assert complete(client, next(iter(folders)))


def test_an_adapter_for_another_model_fails_its_request_with_the_reason(fetching: RunningWorker, folder: Path) -> None:
    wide = make_tiny_checkpoint(folder / "wide", hidden_size=128)
    digest = asyncio.run(store_adapter(str(folder / "store"), make_tiny_adapter(folder / "for-wide", wide)))
    with fetching.client() as client:
        reply = client.post("/v1/completions", json={**BODY, "model": artifact_name(digest)})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "adapter_failed")
    message = reply.json()["error"]["message"]
    assert "expected" in message and str(folder) not in message
