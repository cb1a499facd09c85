"""A gateway in a process of its own, as in production, in front of an upstream that costs almost no CPU time."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import httpx
import psutil

from benchmarks.gateway.load import Target
from benchmarks.gateway.machine import Cores, assign_cores
from benchmarks.gateway.servers import Gateway
from benchmarks.gateway.stage import open_stage

DEADLINE_S = 30.0
MAX_GROWTH_BYTES = 64 * 2**20
"""A leak per connection or request would exceed this after thousands of them."""
_SPARE_FDS = 16
"""Descriptors allowed for idle connections to members and to the database, which come and go."""


@dataclass(frozen=True)
class AbusedGateway:
    gateway: Gateway
    target: Target
    process: psutil.Process
    num_fds: int
    rss_bytes: int

    @property
    def port(self) -> int:
        return self.gateway.port

    def check_all_given_back(self) -> None:
        """Assert that all descriptors are released within the deadline, and the memory too."""
        deadline = time.monotonic() + DEADLINE_S
        while (num_more := self.process.num_fds() - self.num_fds) > _SPARE_FDS:
            assert time.monotonic() < deadline, f"{num_more} descriptors are still held"
            time.sleep(0.05)
        assert self.process.memory_info().rss - self.rss_bytes < MAX_GROWTH_BYTES


@contextmanager
def abused_gateway(**variables: str) -> Iterator[AbusedGateway]:
    """Raises AssertionError at the end if the gateway's log contains a traceback."""
    every = assign_cores().every
    with open_stage(Cores(every, every, every), ["foreign"]) as opened, ExitStack() as stack:
        stage = replace(opened, site=replace(opened.site, extra=variables))
        gateway, targets = stack.enter_context(stage.gateway("abused"))
        process = psutil.Process(gateway.pid)
        # Memory that the first requests allocate permanently is no growth.
        asyncio.run(ask_some(targets["foreign"]))
        yield AbusedGateway(gateway, targets["foreign"], process, process.num_fds(), process.memory_info().rss)
        log = gateway.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:5000]


async def ask_some(target: Target) -> None:
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(1, is_over.set)
    assert await ask_until(target, is_over) > 0


async def ask_until(target: Target, is_over: asyncio.Event) -> int:
    """Send requests as a normal client; returns their number. Asserts that each is answered."""
    body = target.request().partition(b"\r\n\r\n")[2]
    headers = {"Authorization": f"Bearer {target.key}", "Content-Type": "application/json"}
    asked = 0
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        while not is_over.is_set():
            url = f"http://127.0.0.1:{target.ports[0]}/v1/chat/completions"
            reply = await client.post(url, content=body, headers=headers)
            assert reply.status_code == 200, reply.text
            assert reply.json()["choices"]
            asked += 1
    return asked
