"""Measures how long `tiergate audit verify` takes over many rows, and how fast batches of tool calls are written.

    python -m benchmarks.audit --rows 1000000 [--database-url URL]

The rows are written as gateways write tool calls, 200 per transaction, into SQLite or the given empty database.
Gate: a million rows are verified in less than a minute.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from gateway.database import Sessions, open_sessions
from gateway.domain.audit.verification import verify
from gateway.domain.audit.writing import NewEntry, append
from gateway.peppers import Peppers
from migrations.run import migrate

PEPPER = "pepper-of-the-benchmark"
BATCH = 200
"""The batch size of gateway/tools/trail.py."""
MAX_S_PER_MILLION = 60.0
NOW = datetime(2026, 3, 31, tzinfo=UTC)


async def write(sessions: Sessions, num_rows: int) -> None:
    tenants = [(uuid4(), uuid4(), uuid4()) for _ in range(100)]
    for first in range(0, num_rows, BATCH):
        batch = []
        for number in range(first, min(num_rows, first + BATCH)):
            tenant_id, key_id, tool_id = tenants[number % len(tenants)]
            detail = {"tool": "weather", "call_id": f"call-{number}", "status": "ok", "duration_ms": number % 977 / 10}
            after = (
                {"name": f"n{number}", "tier": "pro", "limits": {"concurrency": number % 50}} if number % 5 else None
            )
            batch.append(
                NewEntry(
                    at=NOW + timedelta(seconds=number),
                    actor_key_id=key_id,
                    tenant_id=tenant_id,
                    action="tool.call",
                    object_id=str(tool_id),
                    request_id=str(uuid4()),
                    address="192.0.2.1",
                    detail=detail,
                    after=after,
                )
            )
        async with sessions.begin() as session:
            await append(session, batch)
        if first % 50_000 == 0:
            print(f"\r{first:,} rows written", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


async def measure(url: str, num_rows: int) -> dict[str, float | int | str]:
    async with open_sessions(url, peppers=Peppers(PEPPER)) as sessions:
        started = time.perf_counter()
        await write(sessions, num_rows)
        written = time.perf_counter()
        end = await verify(sessions, peppers=Peppers(PEPPER))
        verified = time.perf_counter()
    assert end.num_rows == num_rows
    return {
        "database": url.partition(":")[0],
        "rows": num_rows,
        "rows_written_per_s": round(num_rows / (written - started)),
        "verify_s": round(verified - written, 2),
        "verify_s_per_million": round((verified - written) / num_rows * 1e6, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--database-url", help="of an empty database; default: SQLite in a folder that goes again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.database_url or f"sqlite:///{Path(folder) / 'audit.db'}"
        migrate(url)
        found = asyncio.run(measure(url, arguments.rows))
    print(json.dumps(found))
    return 0 if float(found["verify_s_per_million"]) < MAX_S_PER_MILLION else 1


if __name__ == "__main__":
    sys.exit(main())
