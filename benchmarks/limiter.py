"""Measures the cost of limits: CPU microseconds of an admit and settle pair, in the gateway's process and in Valkey.

python -m benchmarks.limiter [--callers 64] [--pairs 20000] [--max-us 60]

Prints one JSON line; exits 1 if the gateway's part costs more than --max-us.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import uvloop

from gateway.limits.ledger import Used
from gateway.limits.limiter import Limiter, open_limiter
from gateway.limits.reservation import Admission
from tests.support.tiers import make_tier
from tests.support.valkey import ValkeyProcess

NOW = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)
TIER = make_tier(
    requests_per_minute=10**8,
    tokens_per_minute=10**10,
    concurrency=10**6,
    tokens_per_day=10**12,
    budget_nanousd_per_month=10**15,
)


@dataclass(frozen=True)
class Result:
    callers: int
    pairs: int
    gateway_cpu_us: float
    valkey_cpu_us: float
    pairs_per_s: float
    decided_locally: int


class EmptyLedger:
    async def used(self, tenant_id: UUID, scope: str, now: datetime) -> Used:
        return Used(0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--max-us", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        valkey = ValkeyProcess(Path(folder))
        valkey.start()
        try:
            result = uvloop.run(measure(valkey, callers=options.callers, pairs=options.pairs))
        finally:
            valkey.stop()
    print(json.dumps(asdict(result)))
    sys.exit(result.gateway_cpu_us > options.max_us)


async def measure(valkey: ValkeyProcess, *, callers: int, pairs: int) -> Result:
    async with open_limiter(valkey.url, EmptyLedger(), deadline_s=0.05) as limiter:
        loop = asyncio.create_task(limiter.run_forever())
        tenant_id, each = uuid4(), pairs // callers
        await asyncio.gather(*(call(limiter, tenant_id, 10) for _ in range(callers)))
        started, own, theirs = time.perf_counter(), time.process_time(), valkey.cpu_s()
        await asyncio.gather(*(call(limiter, tenant_id, each) for _ in range(callers)))
        wall_s = time.perf_counter() - started
        gateway_s, valkey_s = time.process_time() - own, valkey.cpu_s() - theirs
        loop.cancel()
    done = each * callers
    return Result(
        callers,
        done,
        gateway_cpu_us=round(gateway_s / done * 1e6, 1),
        valkey_cpu_us=round(valkey_s / done * 1e6, 1),
        pairs_per_s=round(done / wall_s),
        decided_locally=limiter.num_decided_here,
    )


async def call(limiter: Limiter, tenant_id: UUID, times: int) -> None:
    for _ in range(times):
        asked = Admission(str(uuid4()), tenant_id, TIER, tokens=100, cost_nanousd=1000, now=NOW)
        reservation = await limiter.admit(asked)
        await limiter.settle(reservation, tokens=50, cost_nanousd=500)


if __name__ == "__main__":
    main()
