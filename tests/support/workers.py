"""Real workers on tiny random models, in processes of their own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from tests.support.gateways import WORKER_KEY
from tests.support.ports import free_port

START_DEADLINE_S = 90
ADAPTERS = ("pirate",)


class WorkerProcess:
    """`tiergate worker` for one pool, registering itself in Redis; its model id is `tiny-<pool>`."""

    def __init__(
        self,
        folder: Path,
        *,
        pool: str,
        redis_url: str,
        seed: int = 0,
        model: Path | None = None,
        options: tuple[str, ...] = (),
        drain_grace_s: float = 30,
    ) -> None:
        """model: an existing checkpoint. options: further options of `tiergate worker`."""
        self.pool = pool
        self.model_id = f"tiny-{pool}"
        self._port = free_port()
        self._log = folder / f"{pool}-{self._port}.log"
        model = model or make_tiny_checkpoint(folder / pool, seed=seed)
        adapters = [
            f"--adapter={name}={make_tiny_adapter(folder / f'{pool}-{name}', model, seed=seed + 1)}"
            for name in ADAPTERS
        ]
        given = ["--name", self.model_id, "--pool", pool, "--port", str(self._port), "--register", redis_url, *options]
        command = [sys.executable, "-m", "tiergate", "worker", "--model", str(model), *given, *adapters]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIERGATE_")}
        environment |= {"TIERGATE_WORKER_KEY": WORKER_KEY, "TIERGATE_WORKER_DRAIN_GRACE_S": str(drain_grace_s)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            assert self.process.poll() is None, self._log.read_text()
            try:
                if httpx.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def load(self) -> dict[str, int]:
        reply = httpx.get(f"{self.url}/load", headers={"Authorization": f"Bearer {WORKER_KEY}"}, timeout=10)
        report: dict[str, int] = reply.raise_for_status().json()
        return report

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
