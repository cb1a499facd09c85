"""Several gateway processes and many clients against one tenant: never one over, while Redis answers."""

import asyncio
import json
import sys
from pathlib import Path
from uuid import uuid4

from tests.support.valkey import ValkeyProcess

NUM_PROCESSES, NUM_CLIENTS, NUM_BURSTS = 4, 250, 3
LIMITS = {
    "requests_per_minute": 100,
    "tokens_per_minute": 10_000,
    "budget_nanousd_per_month": 10**9,
}
BURSTS = [(1, 1, 100), (300, 1, 33), (1, 3 * 10**7, 33)]
"""Tokens and cost of each request, and how many pass: requests, tokens, then the budget bind."""
BURST = """
import asyncio, json, sys
from uuid import UUID
import uvloop
from gateway.http.errors import LimitReached
from tests.support.limiters import admission, open_limiter
from tests.support.tiers import make_tier

async def main(url, limits, num_clients):
    tier = make_tier(**limits)
    async with open_limiter(url, deadline_s=1.0) as limiter:
        print("ready", flush=True)
        for line in iter(sys.stdin.readline, ""):
            tenant_id, tokens, cost = json.loads(line)

            async def client():
                for _ in range(3):
                    try:
                        asked = admission(UUID(tenant_id), tier, tokens=tokens, cost_nanousd=cost)
                        reservation = await limiter.admit(asked)
                        passed.append(reservation.standing.is_local)
                    except LimitReached:
                        pass

            passed = []
            await asyncio.gather(*(client() for _ in range(num_clients)))
            print(json.dumps([len(passed), limiter.num_decided_here]), flush=True)

uvloop.run(main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])))
"""


async def test_a_burst_on_all_processes_passes_exactly_the_limit(tmp_path: Path) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    arguments = ("-c", BURST, valkey.url, json.dumps(LIMITS), str(NUM_CLIENTS))
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
        for _ in range(NUM_PROCESSES)
    ]
    try:
        assert await lines_of(processes) == [b"ready\n"] * NUM_PROCESSES
        for tokens, cost_nanousd, most in NUM_BURSTS * BURSTS:
            order = json.dumps([str(uuid4()), tokens, cost_nanousd]).encode() + b"\n"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(order)
            results = [json.loads(line) for line in await lines_of(processes)]
            assert sum(num_passed for num_passed, _ in results) == most
            assert [num_local for _, num_local in results] == [0] * NUM_PROCESSES
    finally:
        for process in processes:
            process.kill()
            await process.wait()
        valkey.stop()


async def lines_of(processes: list[asyncio.subprocess.Process]) -> list[bytes]:
    """The next one of each."""
    return await asyncio.gather(*(process.stdout.readline() for process in processes if process.stdout is not None))
