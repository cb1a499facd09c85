"""The process: what stops its start, and how it ends."""

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis

from protocol.load import WORKERS_KEY, unseal
from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.valkey import ValkeyProcess
from worker.main import run
from worker.settings import WorkerSettings

_RUN = (
    "import sys; from worker.main import run; from worker.settings import load_settings; sys.exit(run(load_settings()))"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", max_model_len=4096)


def assert_refused(settings: WorkerSettings, capsys: pytest.CaptureFixture[str], *words: str) -> None:
    assert run(settings) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    for word in words:
        assert word in line


def test_a_port_in_use_is_one_line(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_refused(WorkerSettings(model=checkpoint, port=port), capsys, str(port), "in use")


def test_a_missing_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(WorkerSettings(model=tmp_path / "none", port=0), capsys, "none", "not a folder")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_checkpoint_without_a_file_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny_checkpoint(tmp_path / "broken")
    (folder / name).unlink()
    assert_refused(WorkerSettings(model=folder, port=0), capsys, name)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("generation_config.json", '{"temperature": "x"}'), ("tokenizer_config.json", "[")],
)
def test_a_broken_file_is_one_line(name: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny_checkpoint(tmp_path / "broken")
    (folder / name).write_text(content)
    assert_refused(WorkerSettings(model=folder, port=0), capsys, name)


def test_an_adapter_that_is_not_there_is_one_line(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = WorkerSettings(model=checkpoint, port=0, adapters={"a": Path("/nowhere")})
    assert_refused(settings, capsys, "/nowhere")


@contextmanager
def process(checkpoint: Path, **variables: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"MODEL": str(checkpoint), "PORT": str(port), "NUM_THREADS": "1", "NAME": "tiny"} | variables
    environment = dict(os.environ) | {f"TIERGATE_WORKER_{name}": value for name, value in variables.items()}
    with subprocess.Popen([sys.executable, "-c", _RUN], env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            origin = f"http://127.0.0.1:{port}"
            _wait_ready(running, origin)
            yield running, origin
        finally:
            running.kill()


def _wait_ready(running: "subprocess.Popen[str]", origin: str) -> None:
    ends_at = time.monotonic() + 60
    while time.monotonic() < ends_at:
        assert running.poll() is None
        try:
            if httpx.get(f"{origin}/ready", timeout=30).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("not ready in time")


def test_sigterm_lets_a_stream_finish_and_refuses_new_requests(checkpoint: Path) -> None:
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with process(checkpoint) as (running, origin), httpx.Client(base_url=origin, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            # Opened before, since a server that drains may take no new connections at its end.
            assert client.get("/load").json()["is_draining"] is False
            running.send_signal(signal.SIGTERM)
            while not client.get("/load").json()["is_draining"]:
                pass
            refused = client.post("/v1/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert client.get("/ready").status_code == 503
            assert client.get("/health").status_code == 200
            rest = list(lines)
        assert "data: [DONE]" in rest
        assert running.wait(30) == 0


def test_a_drain_ends_with_its_grace(checkpoint: Path) -> None:
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with process(checkpoint, DRAIN_GRACE_S="0.2") as (running, origin), httpx.Client(base_url=origin) as client:
        with client.stream("POST", "/v1/completions", json=body, timeout=60) as reply:
            lines = reply.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            rest = "\n".join(lines)
        assert "[DONE]" not in rest
        assert "shutting_down" in rest
        assert running.wait(30) == 0


def test_a_registered_worker_is_known_until_it_stops(checkpoint: Path, tmp_path: Path) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    try:
        with (
            redis.Redis.from_url(valkey.url) as client,
            process(checkpoint, REGISTER=valkey.url, KEY="k", POOL="small") as (running, origin),
        ):
            ends_at = time.monotonic() + 10
            while not (sealed := client.hvals(WORKERS_KEY)):
                assert time.monotonic() < ends_at, "no registration"
                time.sleep(0.02)
            registration = unseal(sealed[0], worker_keys=("k",))
            assert (registration.url, registration.load.model, registration.load.pool) == (origin, "tiny", "small")
            running.send_signal(signal.SIGTERM)
            assert running.wait(30) == 0
            assert client.hlen(WORKERS_KEY) == 0
    finally:
        valkey.stop()
