"""Checks that usage is stored effectively once: every finished request has one row in ClickHouse, whatever crashed.

python -m benchmarks.exactly_once [--requests 20000] [--kills 50] [--seed N] [--clients 24]

The site has two machines, each with a gateway, a producer and a data directory of its own; a Kafka broker; two
consumers; and the ClickHouse engine behind a proxy. All the while one of them, drawn by the seed, is killed (-9),
frozen, or cut off. In the end each request that a client saw finished must have exactly one deduplicated row, with the
tokens reported to the client and their price, and each tenant's invoice must equal the sum. Prints its seed and one
JSON line; exits 1 on any difference.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.exactly_once.clients import Clients
from benchmarks.exactly_once.proof import prove
from benchmarks.exactly_once.site import open_site
from benchmarks.exactly_once.upsets import Upsets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--clients", type=int, default=24)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="tiergate-exactly-once-") as folder:
        size = {"num_requests": options.requests, "num_kills": options.kills, "num_clients": options.clients}
        result = asyncio.run(measure(Path(folder), seed=seed, **size))
    print(json.dumps(result))
    sys.exit(bool(result["differences"]))


async def measure(
    folder: Path, *, num_requests: int, num_kills: int, seed: int, num_clients: int = 24
) -> dict[str, object]:
    """Run the load and return the figures, with the number of mismatches under `differences`."""
    began = time.monotonic()
    async with open_site(folder) as site:
        clients = Clients(site, num_requests=num_requests, rng=random.Random(seed))
        upsets = Upsets(site, rng=random.Random(seed + 1))
        async with asyncio.TaskGroup() as group:
            upsetting = group.create_task(upsets.run(num_kills, when=clients.each_share(num_kills)))
            for _ in range(num_clients):
                group.create_task(clients.ask_until(upsetting.done))
        loaded = time.monotonic()
        await site.settle()
        found = await prove(site, clients.finished)
    return {
        "benchmark": "exactly_once",
        "seed": seed,
        "requests": len(clients.finished),
        "cut_requests": clients.num_cut,
        "upsets": dict(sorted(upsets.counts.items())),
        "load_s": round(loaded - began, 1),
        "settled_s": round(time.monotonic() - loaded, 1),
        **found,
    }


if __name__ == "__main__":
    main()
