"""A real Prometheus for tests, with the deployed configuration except for its addresses."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DEADLINE_S = 60


def binary(name: str) -> str:
    """The path of `prometheus` or `promtool`, both of which are in Debian's package `prometheus`."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI has no {name}")
        pytest.skip(f"{name} is not installed")
    return found


class Prometheus:
    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def labels_of(self, metric: str) -> set[str]:
        series = self._get("series", **{"match[]": metric})
        return {label for labels in series for label in labels}

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def are_all_up(self) -> bool:
        targets = self._get("targets")["activeTargets"]
        return bool(targets) and all(target["health"] == "up" for target in targets)

    def _get(self, path: str, **parameters: str) -> Any:
        reply = self._http.get(f"/api/v1/{path}", params=parameters)
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]


@contextmanager
def running_prometheus(folder: Path, targets: Mapping[str, Sequence[str]], *, key: str) -> Iterator[Prometheus]:
    """Scrapes every second. targets: job name -> addresses, for every job of the deployed configuration."""
    port = free_port()
    (folder / "key").write_text(key)
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    for job in config["scrape_configs"]:
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
        job["authorization"] = {"credentials_file": str(folder / "key")}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        binary("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as http:
            _wait_until_ready(http, process, folder / "prometheus.log")
            yield Prometheus(http)
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(http: httpx.Client, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            if http.get("/-/ready").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
