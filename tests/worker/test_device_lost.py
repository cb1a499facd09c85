"""A device that is lost in a step: its requests fail and say why, and the process ends, to be restarted."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.checkpoints import make_tiny_checkpoint
from tests.support.losing_worker import LACKS_MEMORY, LOSES_AT_LAUNCH, LOSES_LATER
from tests.worker.test_main import _wait_ready

_LONG = {"model": "tiny", "prompt": [1, 2], "max_tokens": 4000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", max_model_len=4096)


@contextmanager
def losing_worker(checkpoint: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"MODEL": str(checkpoint), "PORT": str(port), "NUM_THREADS": "1", "NAME": "tiny"}
    environment = dict(os.environ) | {f"TIERGATE_WORKER_{name}": value for name, value in variables.items()}
    command = [sys.executable, "-m", "tests.support.losing_worker"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            origin = f"http://127.0.0.1:{port}"
            _wait_ready(running, origin)
            yield running, origin
        finally:
            running.kill()


@pytest.mark.parametrize(
    ("token", "reason"),
    [(LOSES_AT_LAUNCH, "illegal memory access"), (LOSES_LATER, "misaligned address")],
    ids=["at a launch", "in a step"],
)
def test_a_lost_device_ends_the_process_and_its_requests_say_why(checkpoint: Path, token: int, reason: str) -> None:
    with losing_worker(checkpoint) as (running, origin), httpx.Client(base_url=origin, timeout=60) as client:
        bystander: list[str] = []
        has_begun = threading.Event()

        def read() -> None:
            with httpx.stream("POST", f"{origin}/v1/completions", json=_LONG, timeout=60) as reply:
                for line in reply.iter_lines():
                    bystander.append(line)
                    has_begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert has_begun.wait(30)
        failed = client.post("/v1/completions", json={"model": "tiny", "prompt": [token], "max_tokens": 2})
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "step_failed")
        assert reason in failed.json()["error"]["message"]
        reader.join(30)
        assert "[DONE]" not in "".join(bystander) and "error" in "".join(bystander)
        # Out of rotation at once, and soon gone.
        with suppress(httpx.TransportError):
            assert client.get("/ready").status_code == 503
        assert running.wait(30) == 1
        assert running.stderr is not None
        said = running.stderr.read()
        assert (
            "CRITICAL the device is lost, and only a new process can use it again: RuntimeError: CUDA error: " in said
        )
        assert reason in said and "Traceback" not in said


def test_too_little_memory_in_a_step_fails_only_its_request(checkpoint: Path) -> None:
    with losing_worker(checkpoint) as (running, origin), httpx.Client(base_url=origin, timeout=60) as client:
        failed = client.post("/v1/completions", json={"model": "tiny", "prompt": [LACKS_MEMORY], "max_tokens": 2})
        assert failed.status_code == 500 and "CUDA out of memory" in failed.json()["error"]["message"]
        body = {"model": "tiny", "prompt": [1], "max_tokens": 3, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 3
        assert client.get("/ready").status_code == 200 and running.poll() is None
