"""`tiergate clickhouse` in a process of its own, for tests."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from gateway.metering.clickhouse import connect
from tests.support.ports import free_port

GIVEN_URL = "TIERGATE_TEST_CLICKHOUSE_URL"
START_DEADLINE_S = 60
_PROGRAM = """
import sys
from pathlib import Path
from tiergate.embedded.clickhouse import run
sys.exit(run(Path(sys.argv[1]), int(sys.argv[2]), password=sys.argv[3]))
"""
PASSWORD = "the-clickhouse-password"


@dataclass(frozen=True)
class ClickHouseProcess:
    process: "subprocess.Popen[bytes]"
    port: int

    @property
    def url(self) -> str:
        return url_at(self.port)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def url_at(port: int) -> str:
    return f"http://tiergate:{PASSWORD}@127.0.0.1:{port}"


def spawn_clickhouse(data_dir: Path, port: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(data_dir), str(port), PASSWORD], stderr=subprocess.PIPE
    )


def start_clickhouse(data_dir: Path, port: int | None = None) -> ClickHouseProcess:
    """Start it and wait until it answers."""
    chosen = port or free_port()
    process = spawn_clickhouse(data_dir, chosen)
    running = ClickHouseProcess(process, chosen)
    deadline = time.monotonic() + START_DEADLINE_S
    while not _answers(running):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            _, log = process.communicate()
            raise RuntimeError(f"clickhouse did not start: {log.decode()}")
        time.sleep(0.02)
    return running


@contextmanager
def running_clickhouse(data_dir: Path) -> Iterator[ClickHouseProcess]:
    running = start_clickhouse(data_dir)
    try:
        yield running
    finally:
        running.kill()


@dataclass(frozen=True)
class GivenClickHouse:
    """A server that exists before and after the tests; its user may create databases."""

    url: str


@contextmanager
def any_clickhouse(data_dir: Path) -> Iterator[ClickHouseProcess | GivenClickHouse]:
    """The server of TIERGATE_TEST_CLICKHOUSE_URL if that is set, otherwise a new one; for tests that do not stop it."""
    given = os.environ.get(GIVEN_URL)
    if given:
        yield GivenClickHouse(given.rstrip("/"))
        return
    with running_clickhouse(data_dir) as running:
        yield running


@contextmanager
def own_database(server: ClickHouseProcess | GivenClickHouse) -> Iterator[str]:
    """The URL of a new database on the server; on a given server it is dropped at the end."""
    name = f"tiergate_test_{uuid4().hex}"
    yield f"{server.url}/{name}"
    if isinstance(server, GivenClickHouse):
        with connect(server.url) as client:
            client.command(f"DROP DATABASE IF EXISTS {name} SYNC")


def _answers(running: ClickHouseProcess) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{running.port}/ping", timeout=2) as reply:
        return bool(reply.read() == b"Ok.\n")
    return False
