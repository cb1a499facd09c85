"""A real gateway whose disk takes nothing any more: 503 before anything would be lost, and nothing acknowledged is."""

import asyncio
import os
import resource
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from benchmarks.exactly_once.member import answer
from gateway.metering.adoption import adopt_orphans
from gateway.metering.folders import list_folders
from gateway.metering.journal import Journal
from tests.support.gateway_processes import DEADLINE_S, Processes, kill, serving, until_dead
from tests.support.members import serving_member
from tests.support.valkey import ValkeyProcess

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 3}
NUM_CLIENTS = 4
PAUSE_S = 0.01


@dataclass
class Clients:
    """They ask all the time, every other time for a stream."""

    origin: str
    key: str
    finished: set[str] = field(default_factory=set)
    """Ids of the requests that were answered in whole."""
    statuses: Counter[int] = field(default_factory=Counter)
    is_over: bool = False

    async def ask_for_ever(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(base_url=f"{self.origin}/v1", headers=headers, timeout=DEADLINE_S) as client:
            number = 0
            while not self.is_over:
                number += 1
                try:
                    reply = await client.post("/chat/completions", json=BODY | {"stream": number % 2 == 0})
                except httpx.TransportError:
                    # It was killed under us.
                    return
                is_whole = reply.status_code == 200 and (number % 2 or b"data: [DONE]" in reply.content)
                if is_whole:
                    self.finished.add(reply.headers["x-request-id"])
                self.statuses[200 if is_whole else max(reply.status_code, 500)] += 1
                await asyncio.sleep(PAUSE_S)

    async def until(self, status: int, *, more: int = 12) -> None:
        """So many more answers of it, without another in between."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                others, goal = self.statuses.total() - self.statuses[status], self.statuses[status] + more
                while self.statuses[status] < goal:  # noqa: ASYNC110
                    await asyncio.sleep(PAUSE_S)
                if self.statuses.total() - self.statuses[status] == others:
                    return


@asynccontextmanager
async def asking(processes: Processes) -> AsyncIterator[Clients]:
    clients = Clients(processes.origin, await processes.make_key())
    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_CLIENTS):
            group.create_task(clients.ask_for_ever())
        try:
            yield clients
        finally:
            clients.is_over = True


def limit_files(pid: int, num_bytes: int) -> None:
    """From now on the kernel refuses the process each write beyond it, as of a disk that takes no more."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, most))


@contextmanager
def mounted_ext4(image: Path, folder: Path) -> Iterator[str]:
    """The disk in a file of its own, made if it is not there, repaired if it has errors; the name of its device."""
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("only root may mount a disk, on a machine with loop devices")
    folder.mkdir(exist_ok=True)
    if not image.exists():
        with image.open("wb") as file:
            file.truncate(4 << 30)
        _run("mkfs.ext4", "-q", str(image))
    _run("e2fsck", "-p", str(image), accepted=(0, 1))
    _run("mount", "-o", "loop,errors=remount-ro", str(image), str(folder))
    try:
        yield Path(_run("findmnt", "-no", "SOURCE", str(folder)).strip()).name
    finally:
        _run("umount", str(folder))


def find_error(device: str) -> None:
    Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")


def _run(*command: str, accepted: tuple[int, ...] = (0,)) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")
    assert done.returncode in accepted, done.stdout + done.stderr
    return done.stdout


async def test_a_disk_that_takes_nothing_loses_nothing_that_was_acknowledged(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with (
        serving_member(answer) as url,
        serving(tmp_path, valkey.url, num_processes=1, member_url=url) as processes,
        asking(processes) as clients,
    ):
        pid = processes.parent.pid
        await clients.until(200)
        limit_files(pid, 0)
        await clients.until(503)
        async with httpx.AsyncClient() as client:
            ready = await client.get(f"{processes.origin}/ready")
        assert ready.status_code == 503 and "outbox" in ready.json()["missing"]
        limit_files(pid, resource.RLIM_INFINITY)
        await clients.until(200)
        limit_files(pid, 0)
        await clients.until(503)
        kill(pid)
        await until_dead({pid})
    assert_all_recorded(clients, tmp_path / "data")


async def test_a_disk_that_turns_read_only_loses_nothing_that_was_acknowledged(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    """As Linux does it to a file system that it finds an error in."""
    place = tmp_path / "place"
    with mounted_ext4(tmp_path / "disk", place) as device:
        async with (
            serving_member(answer) as url,
            serving(place, valkey.url, num_processes=1, member_url=url) as processes,
            asking(processes) as clients,
        ):
            await clients.until(200)
            find_error(device)
            await clients.until(503)
            async with httpx.AsyncClient() as client:
                ready = await client.get(f"{processes.origin}/ready")
            assert ready.status_code == 503 and "outbox" in ready.json()["missing"]
            kill(processes.parent.pid)
            await until_dead({processes.parent.pid})
    with mounted_ext4(tmp_path / "disk", place):
        assert_all_recorded(clients, place / "data")


def assert_all_recorded(clients: Clients, data_dir: Path) -> None:
    """Each answer that a client got in whole, once."""
    adopt_orphans(data_dir)
    [folder] = list_folders(data_dir)
    with closing(Journal.open(folder)) as journal:
        events = [closed.event for closed in journal.read_closed(100_000)]
    assert len({event.request_id for event in events}) == len(events)
    assert clients.finished <= {event.request_id for event in events if event.status == "ok"}
