"""The process: what stops its start is one line and code 2; SIGTERM ends it with 0."""

import asyncio
import contextlib
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

from benchmarks.exactly_once.member import answer
from gateway.main import end_tasks
from tests.support.gateway_processes import serving, stream
from tests.support.gateways import ADMIN_KEY, copy_database
from tests.support.members import serving_member
from tests.support.ports import free_port
from tests.support.valkey import ValkeyProcess

DEADLINE_S = 60


def start(folder: Path, **variables: str) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TIERGATE_")}
    given = {"TIERGATE_KEY_PEPPER": "p" * 16, "TIERGATE_DATA_DIR": str(folder / "data")}
    return subprocess.Popen(
        [sys.executable, "-m", "tiergate", "gateway"],
        env=clean | given | variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def refusal(folder: Path, **variables: str) -> str:
    """The one line that a start ends with."""
    process = start(folder, **variables)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2, output
    [line] = output.strip().splitlines()
    return line


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with taken_port() as port:
        assert "TIERGATE_PORT" in refusal(tmp_path, TIERGATE_PORT=str(port))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIERGATE_PORT", "abc"),
        ("TIERGATE_REDIS_URL", "nonsense"),
        ("TIERGATE_KEY_PEPPER", "short"),
        ("TIERGATE_DATA_DIR", "/dev/null/data"),
        ("TIERGATE_DATABASE_URL", "sqlite:////nowhere/at/all.db"),
        ("TIERGATE_MAX_CONNECTIONS", "1000000000"),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(tmp_path: Path, name: str, value: str) -> None:
    assert name in refusal(tmp_path, **{"TIERGATE_PORT": "0", name: value})


def test_a_database_without_tables_is_told(tmp_path: Path) -> None:
    assert "tiergate migrate" in refusal(tmp_path, TIERGATE_PORT="0")


def test_weights_of_the_router_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    copy_database(tmp_path / "data" / "tiergate.db")
    assert "TIERGATE_ROUTER_WEIGHTS" in refusal(tmp_path, TIERGATE_PORT="0", TIERGATE_ROUTER_WEIGHTS="/dev/null")


def test_sigterm_ends_it_and_leaves_no_outbox(tmp_path: Path, valkey: ValkeyProcess) -> None:
    (tmp_path / "data").mkdir()
    copy_database(tmp_path / "data" / "tiergate.db")
    port = free_port()
    process = start(
        tmp_path,
        TIERGATE_PORT=str(port),
        TIERGATE_REDIS_URL=valkey.url,
        TIERGATE_BOOTSTRAP_ADMIN_KEY=ADMIN_KEY,
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not answers(port):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.wait()
    assert [path for path in (tmp_path / "data" / "outbox").iterdir() if path.is_dir()] == []


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


DYING = """
from gateway.metering.journal import Journal
from tiergate.main import main

def die(*_):
    raise RuntimeError("nothing writes any more")

Journal.write = die
main()
"""


async def test_an_outbox_without_its_writer_ends_the_process_with_1(tmp_path: Path, valkey: ValkeyProcess) -> None:
    """And says why, instead of answering on without billing."""
    async with (
        serving_member(answer) as member_url,
        serving(
            tmp_path, valkey.url, num_processes=1, member_url=member_url, program=("-c", DYING), TIERGATE_DRAIN_S="1"
        ) as processes,
    ):
        key = await processes.make_key()
        with contextlib.suppress(httpx.TransportError):
            assert [event async for event in stream(processes, key)]
        assert await processes.end() == 1
        log = processes.log
        assert "the gateway ends because a part of it failed" in log and "RuntimeError: nothing writes any more" in log


async def test_a_loop_that_swallows_a_cancellation_is_cancelled_again() -> None:
    num_swallowed = 0

    async def stubborn() -> None:
        nonlocal num_swallowed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if num_swallowed == 2:
                    raise
                num_swallowed += 1

    tasks = [asyncio.create_task(stubborn()) for _ in range(2)]
    await asyncio.sleep(0)
    await end_tasks(tasks, patience_s=0.01)
    assert all(task.cancelled() for task in tasks)
    assert num_swallowed == 2
