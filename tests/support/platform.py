"""A whole platform for tests: `tiergate up` in a process of its own, on a free port, with the demo models."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.ports import free_port

START_DEADLINE_S = 120


@dataclass(frozen=True)
class Platform:
    process: "subprocess.Popen[bytes]"
    data_dir: Path
    log_path: Path
    base_url: str
    """Includes `/v1`, as the OpenAI client requires."""
    admin_key: str
    enterprise_key: str
    free_key: str
    dashboard_url: str

    @property
    def origin(self) -> str:
        return self.base_url.removesuffix("/v1")

    def admin(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        return httpx.Client(base_url=f"{self.origin}/admin/v1", headers=headers, timeout=30)

    def pids_of(self, command: str) -> list[int]:
        """The processes below this `up` that run `tiergate <command>`."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _is_child(int(entry.name), self.process.pid):
                arguments = _command_line(int(entry.name))
                if command in arguments and any("tiergate" in argument for argument in arguments):
                    pids.append(int(entry.name))
        return pids

    def usage_rows(self) -> list[dict[str, Any]]:
        """Every usage event of the last day, straight from the admin API."""
        rows: list[dict[str, Any]] = []
        with self.admin() as admin:
            after = None
            while True:
                query = {"group_by": "request", "limit": 1000} | ({"after": after} if after else {})
                page = admin.get("/usage", params=query).raise_for_status().json()
                rows += page["data"]
                after = page["next"]
                if after is None:
                    return rows


def start_platform(data_dir: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Platform:
    """Start `tiergate up` and wait until it is ready. Raises RuntimeError with the end of its log.

    env: its only TIERGATE_ variables; those of this process are removed.
    """
    ready_path, log_path = data_dir.with_suffix(".ready.json"), data_dir.with_suffix(".log")
    ready_path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tiergate", "up", "--data-dir", str(data_dir), "--port", str(free_port())]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*command, "--json-ready", str(ready_path), *arguments],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**clean_environment(), **(env or {})},
        )
    try:
        wait_until(lambda: ready_path.exists() or process.poll() is not None, deadline_s=START_DEADLINE_S)
        assert process.poll() is None, f"up ended with {process.returncode}"
        ready = json.loads(ready_path.read_text())
    except BaseException as error:
        stop(process)
        raise RuntimeError(f"up did not become ready:\n{log_path.read_text()[-6000:]}") from error
    return Platform(process=process, data_dir=data_dir, log_path=log_path, **ready)


def stop(process: "subprocess.Popen[bytes]") -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def wait_until(condition: Callable[[], object], *, deadline_s: float) -> None:
    """Poll `condition`, which watches another process, until it holds; raises TimeoutError."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {deadline_s} s")
        time.sleep(0.05)


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TIERGATE_")}


def _is_child(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
