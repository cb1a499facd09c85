"""`tiergate gateway --processes N` for tests: real processes, and a continuous load of clients."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.support.gateways import ADMIN_KEY, copy_database
from tests.support.platform import clean_environment
from tests.support.ports import free_port
from tests.support.processes import is_alive

DEADLINE_S = 60.0
PROGRAM = ("-m", "tiergate")
CONFIG = """
[pools.small]
model = "m"
context_window = 512
members = [{{ url = "{member_url}", engine = "openai", model = "m" }}]
"""


@dataclass(frozen=True)
class Processes:
    parent: asyncio.subprocess.Process
    port: int
    folder: Path

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def outboxes(self) -> list[Path]:
        return [path for path in (self.folder / "data" / "outbox").iterdir() if not path.name.startswith(".")]

    def children(self) -> set[int]:
        listed = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children").read_text()
        return {int(pid) for pid in listed.split()}

    async def metrics(self) -> dict[str, float]:
        """The metrics, as served by any of the processes."""
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            reply = await client.get(f"{self.origin}/metrics")
        assert reply.status_code == 200, reply.text
        rows = (line.rsplit(" ", 1) for line in reply.text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in rows}

    async def until_accepting(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not await accepts(self.port):
                assert self.parent.returncode is None, self.log
                await asyncio.sleep(0.05)

    async def until_all_serve(self, num_processes: int) -> None:
        async def all_serve() -> bool:
            return (await self.metrics())["tiergate_gateway_processes"] == num_processes

        async with asyncio.timeout(DEADLINE_S):
            while not await all_serve():
                assert self.parent.returncode is None, self.log
                await asyncio.sleep(0.05)

    async def make_key(self) -> str:
        """The key of a new tenant."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        async with httpx.AsyncClient(base_url=f"{self.origin}/admin/v1", headers=headers, timeout=DEADLINE_S) as admin:
            tenant = await admin.post("/tenants", json={"name": f"tenant-{uuid4().hex[:12]}", "tier": "enterprise"})
            body = {"tenant_id": tenant.json()["id"], "name": "k", "scopes": ["inference"]}
            return str((await admin.post("/keys", json=body)).json()["key"])

    async def end(self) -> int:
        """Wait until the parent ends by itself; returns its exit code."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.parent.wait()


@asynccontextmanager
async def started(
    folder: Path, redis_url: str, *arguments: str, program: Sequence[str] = PROGRAM, **variables: str
) -> AsyncIterator[Processes]:
    """Starts the gateway. If it still runs at the end it is killed, and its children die with it."""
    port = free_port()
    given = {
        "TIERGATE_KEY_PEPPER": "p" * 16,
        "TIERGATE_DATA_DIR": str(folder / "data"),
        "TIERGATE_REDIS_URL": redis_url,
        "TIERGATE_BOOTSTRAP_ADMIN_KEY": ADMIN_KEY,
        "TIERGATE_PORT": str(port),
        "TIERGATE_REDIS_DEADLINE_MS": "5000",
    }
    command = [sys.executable, *program, "gateway", *arguments]
    with (folder / "log").open("wb") as log:
        parent = await asyncio.create_subprocess_exec(
            *command, env=clean_environment() | given | variables, cwd=folder, stdout=log, stderr=log
        )
    try:
        yield Processes(parent, port, folder)
    finally:
        if parent.returncode is None:
            parent.kill()
            await parent.wait()


@asynccontextmanager
async def serving(
    folder: Path,
    redis_url: str,
    *,
    num_processes: int,
    member_url: str = "",
    program: Sequence[str] = PROGRAM,
    **variables: str,
) -> AsyncIterator[Processes]:
    """Starts the gateway, and waits until all its processes serve."""
    (folder / "data").mkdir()
    await asyncio.to_thread(copy_database, folder / "data" / "tiergate.db")
    if member_url:
        (folder / "tiergate.toml").write_text(CONFIG.format(member_url=member_url))
    arguments = f"--processes={num_processes}"
    async with started(folder, redis_url, arguments, program=program, **variables) as processes:
        await processes.until_accepting()
        await processes.until_all_serve(num_processes)
        yield processes


async def until_refused(port: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await accepts(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


class Visitors:
    """Clients that continuously request `GET /health`; any failure of one of them fails the test."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_over = False
        self.num_answers = 0

    async def come_anew(self) -> None:
        """Send each request on a new connection."""
        while not self._is_over:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            await self._ask(reader, writer, is_last=True)
            assert await reader.read() == b""
            writer.close()

    async def stay(self) -> None:
        """Send requests on one connection until the server closes it, then on another."""
        while not self._is_over:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            while await self._ask(reader, writer) and not self._is_over:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            writer.close()

    def leave(self) -> None:
        self._is_over = True

    async def until(self, num_more: int) -> None:
        """Wait for `num_more` further answers."""
        goal = self.num_answers + num_more
        async with asyncio.timeout(DEADLINE_S):
            while self.num_answers < goal:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_last: bool = False) -> bool:
        """Send a request and read its answer; returns whether the connection stays open."""
        headers = b"Host: gateway\r\n" + b"Connection: close\r\n" * is_last
        writer.write(b"GET /health HTTP/1.1\r\n" + headers + b"\r\n")
        async with asyncio.timeout(DEADLINE_S):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        self.num_answers += 1
        return b"connection: close" not in head


@asynccontextmanager
async def visited(port: int) -> AsyncIterator[Visitors]:
    """Runs clients: half of them use new connections, half keep theirs."""
    visitors = Visitors(port)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(visitors.come_anew())
            group.create_task(visitors.stay())
        try:
            yield visitors
        finally:
            visitors.leave()


async def stream(processes: Processes, key: str, **fields: Any) -> AsyncIterator[bytes]:
    """The events of a streamed completion."""
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9, "stream": True}
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(timeout=DEADLINE_S) as client,
        client.stream("POST", f"{processes.origin}/v1/chat/completions", json=body | fields, headers=headers) as reply,
    ):
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line:
                yield line.encode()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def until_dead(pids: set[int]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while any(map(is_alive, pids)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
