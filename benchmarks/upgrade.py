"""Checks that an upgrade fails no request: `python -m benchmarks.upgrade --from REV`.

Two gateways of an old revision serve a continuous load, over PostgreSQL and Valkey. The working tree's version migrates
the database and then replaces the gateways one after the other: the balancer takes a gateway out, it gets SIGTERM and
finishes its requests, the new one becomes ready, and the balancer puts it back. Prints one JSON line; exits 1 if a
request failed, or if there was no request in one of the steps.
"""

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.exactly_once.member import answer
from migrations.plan import plan
from tests.support.members import serving_member
from tests.support.platform import clean_environment
from tests.support.ports import free_port
from tests.support.postgres import find_binaries, running_postgres
from tests.support.valkey import ValkeyProcess

ADMIN_KEY = "tg-adminkey-" + "a" * 40
NUM_GATEWAYS, NUM_TENANTS, NUM_CLIENTS = 2, 20, 6
SETTLED_REQUESTS = 100
"""Requests between two steps, so that clients see each state."""
READY_WITHIN_S = 120.0
ROOT = Path(__file__).parents[1]
_POOL = """
[pools.small]
model = "m"
context_window = 4096
members = [{{ url = "{url}", engine = "openai", model = "m" }}]
"""


@dataclass
class Gateway:
    """A gateway that keeps its port while its version changes."""

    folder: Path
    variables: Mapping[str, str]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, code: Path) -> None:
        """Start the gateway with this code, and wait until it is ready."""
        given = {"TIERGATE_DATA_DIR": str(self.folder / f"data-{self.port}"), "TIERGATE_PORT": str(self.port)}
        with (self.folder / f"gateway-{self.port}.log").open("ab") as log:
            self.process = await asyncio.to_thread(
                subprocess.Popen,
                [sys.executable, "-m", "tiergate", "gateway"],
                env={**self.variables, **given, "PYTHONPATH": str(code)},
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        async with asyncio.timeout(READY_WITHIN_S), httpx.AsyncClient(timeout=5) as client:
            while True:
                if self.process.poll() is not None:
                    raise SystemExit((self.folder / f"gateway-{self.port}.log").read_text()[-2000:])
                with suppress(httpx.HTTPError):
                    if (await client.get(f"{self.origin}/ready")).status_code == 200:
                        return
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """Send SIGTERM and wait, so that running requests end by themselves."""
        if self.process is not None:
            self.process.terminate()
            await asyncio.to_thread(self.process.wait, 90)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Balancer:
    """Balances requests round robin over the gateways that are in, and records the results."""

    gateways: list[Gateway]
    keys: list[str]
    is_in: list[bool] = field(default_factory=lambda: [True] * NUM_GATEWAYS)
    step: str = "before"
    num_requests: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    is_over: bool = False
    _turns: "itertools.count[int]" = field(default_factory=itertools.count)

    async def come(self, client: httpx.AsyncClient) -> None:
        """Send requests as one client, until the balancer is told to end."""
        while not self.is_over:
            turn = next(self._turns)
            among = [gateway for gateway, is_in in zip(self.gateways, self.is_in, strict=True) if is_in]
            gateway, step = among[turn % len(among)], self.step
            try:
                problem = await self._ask(client, gateway, self.keys[turn % len(self.keys)], streams=turn % 3 == 0)
            except httpx.HTTPError as error:
                problem = repr(error)
            self.num_requests[step] += 1
            if problem is not None:
                self.failures.append(f"{step}, {gateway.origin}: {problem}")

    async def pass_through(self) -> None:
        """Wait until the current step has had SETTLED_REQUESTS more requests."""
        step, goal = self.step, self.num_requests[self.step] + SETTLED_REQUESTS
        while self.num_requests[step] < goal:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _ask(self, client: httpx.AsyncClient, gateway: Gateway, key: str, *, streams: bool) -> str | None:
        body: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 8}
        reply = await client.post(
            f"{gateway.origin}/v1/chat/completions",
            json=body | ({"stream": True} if streams else {}),
            headers={"Authorization": f"Bearer {key}"},
        )
        if reply.status_code != 200:
            return f"{reply.status_code} {reply.text[:200]}"
        is_whole = reply.text.rstrip().endswith("data: [DONE]") if streams else bool(reply.json()["choices"])
        return None if is_whole else f"it is cut: {reply.text[-200:]}"


async def run(revision: str, folder: Path) -> dict[str, Any]:
    old = unpack(revision, folder / "old")
    async with AsyncExitStack() as stack:
        binaries = find_binaries()
        if binaries is None:
            raise SystemExit("PostgreSQL is not installed (apt-get install postgresql)")
        database_url = stack.enter_context(running_postgres(binaries))
        valkey = ValkeyProcess(folder)
        valkey.start()
        stack.callback(valkey.stop)
        (folder / "tiergate.toml").write_text(_POOL.format(url=await stack.enter_async_context(serving_member(answer))))
        variables = clean_environment() | {
            "TIERGATE_KEY_PEPPER": "pepper-of-the-benchmark",
            "TIERGATE_DATABASE_URL": database_url,
            "TIERGATE_REDIS_URL": valkey.url,
            "TIERGATE_REDIS_DEADLINE_MS": "5000",
            "TIERGATE_BOOTSTRAP_ADMIN_KEY": ADMIN_KEY,
            "TIERGATE_OUTBOX_MIN_FREE_BYTES": "0",
        }
        await migrate(old, folder, variables)
        gateways = [Gateway(folder, variables) for _ in range(NUM_GATEWAYS)]
        for gateway in gateways:
            stack.callback(gateway.kill)
            await gateway.start(old)
        balancer = Balancer(gateways, await make_tenants(gateways[0].origin))
        planned = await asyncio.to_thread(plan, database_url)
        async with coming(balancer):
            seconds = await upgrade(balancer, folder, variables)
        left = await asyncio.to_thread(plan, database_url)
    steps = dict(balancer.num_requests)
    return {
        "benchmark": "upgrade",
        "from": revision,
        "revisions": [step.revision for step in planned.steps],
        "num_requests": sum(steps.values()),
        "num_failed": len(balancer.failures),
        "failures": balancer.failures[:5],
        "requests_by_step": steps,
        "seconds_by_step": seconds,
        "passed": not balancer.failures and not left.steps and all(steps.get(step) for step in seconds),
    }


async def upgrade(balancer: Balancer, folder: Path, variables: Mapping[str, str]) -> dict[str, float]:
    """Run all steps, and return the seconds of each."""
    seconds: dict[str, float] = {}
    await balancer.pass_through()

    @asynccontextmanager
    async def step(name: str) -> AsyncIterator[None]:
        balancer.step, began_at = name, time.monotonic()
        yield
        seconds[name] = round(time.monotonic() - began_at, 1)
        balancer.step = f"after {name}"
        await balancer.pass_through()

    async with step("migrate"):
        await migrate(ROOT, folder, variables)
    for number, gateway in enumerate(balancer.gateways):
        async with step(f"replace {number + 1}"):
            balancer.is_in[number] = False
            await gateway.stop()
            await gateway.start(ROOT)
            balancer.is_in[number] = True
    return seconds


def unpack(revision: str, folder: Path) -> Path:
    folder.mkdir()
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", revision], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    return folder


async def migrate(code: Path, folder: Path, variables: Mapping[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tiergate", "migrate"),
        env={**variables, "PYTHONPATH": str(code), "TIERGATE_DATA_DIR": str(folder / "migrate")},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"tiergate migrate of {code}: {told.decode()[-2000:]}")


async def make_tenants(origin: str) -> list[str]:
    """Create tenants whose limits this load does not reach, and return their keys."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with httpx.AsyncClient(base_url=f"{origin}/admin/v1", headers=headers, timeout=60) as admin:
        price = {"model_id": "m", "prompt_nanousd": 100, "completion_nanousd": 400}
        (await admin.post("/prices", json=price)).raise_for_status()
        keys = []
        for number in range(NUM_TENANTS):
            tenant = (
                await admin.post("/tenants", json={"name": f"t-{number}", "tier": "enterprise"})
            ).raise_for_status()
            body = {"tenant_id": tenant.raise_for_status().json()["id"], "name": "k", "scopes": ["inference"]}
            keys.append(str((await admin.post("/keys", json=body)).raise_for_status().json()["key"]))
    return keys


@asynccontextmanager
async def coming(balancer: Balancer) -> AsyncIterator[None]:
    async with httpx.AsyncClient(timeout=60) as client, asyncio.TaskGroup() as group:
        for _ in range(NUM_CLIENTS):
            group.create_task(balancer.come(client))
        try:
            yield
        finally:
            balancer.is_over = True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upgrade", description=__doc__)
    parser.add_argument("--from", dest="revision", required=True, help="of git: what the gateways are upgraded from")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tiergate-upgrade-") as folder:
        found = asyncio.run(run(asked.revision, Path(folder)))
    print(json.dumps(found))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
