"""Measures the speed of one or several engines: prefill, decode at 1, 8 and 32 streams, and a mixed workload.

    python -m benchmarks.engine --model small
    python -m benchmarks.engine --adapters 8 --workload c=8 --workload mixed --runs 10
    python -m benchmarks.engine --server ours --server 'llama=llama-server -m small.gguf --port {port}' --json out.json
    python -m benchmarks.engine --server ours --server other=http://127.0.0.1:9000/v1

A server is `ours`, NAME=URL, or NAME=COMMAND, where `{port}` and `{model}` (a Hugging Face folder of random weights,
made at first use in the user's cache) are filled in. All servers stay up and take turns at each workload, so that noise
of the machine affects all of them; ratios are to the last server. `--adapters N` compares our engine without adapters,
with N unused adapters, and with N adapters in use; see `benchmarks.engine.adapters`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.engine.adapters import compare_adapters
from benchmarks.engine.models import SHAPES, make_model
from benchmarks.engine.report import Measurement, print_table, summarize
from benchmarks.engine.servers import Server, running_server
from benchmarks.engine.workloads import WORKLOADS
from benchmarks.platform import end_on_sigterm

_PAUSE_S = 1.0
"""Pause between turns: threads of some engines spin for a while after their work, which must not slow the next one."""
OURS = f"{sys.executable} -m tiergate worker --model {{model}} --port {{port}}"


def main() -> None:
    arguments = _parse_arguments()
    end_on_sigterm()
    folder = arguments.checkpoint or make_model(arguments.model)
    if arguments.adapters:
        names = arguments.workload or ["c=8", "mixed"]
        asyncio.run(compare_adapters(OURS, folder, num_adapters=arguments.adapters, names=names, runs=arguments.runs))
        return
    measurements = asyncio.run(_measure_all(arguments, folder))
    print_table(measurements)
    if arguments.json:
        content = {
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "model": str(folder),
            "measurements": [asdict(measurement) for measurement in measurements],
        }
        arguments.json.write_text(json.dumps(content, indent=2))


async def _measure_all(arguments: argparse.Namespace, folder: Path) -> list[Measurement]:
    measurements = []
    async with contextlib.AsyncExitStack() as stack:
        servers: list[Server] = []
        for spec in arguments.server or ["ours"]:
            name, _, target = spec.partition("=")
            command = OURS if spec == "ours" else target
            servers.append(await stack.enter_async_context(running_server(name, command, folder)))
        for name in arguments.workload or list(WORKLOADS):
            results: dict[str, list[Measurement]] = {server.name: [] for server in servers}
            for run in range(arguments.runs + 1):
                for server in servers:
                    await asyncio.sleep(_PAUSE_S)
                    streams, wall_s = await WORKLOADS[name](server, seed=run)
                    # The first round only warms up caches and compilers.
                    if run > 0:
                        results[server.name].append(summarize(server, name, streams, wall_s))
            for server in servers:
                measurements.append(_median(results[server.name]))
                print(f"{name:>8} {server.name}: {measurements[-1].tokens_per_s:,.0f} tokens/s", file=sys.stderr)
    return measurements


def _median(measurements: list[Measurement]) -> Measurement:
    """The whole run with the median throughput, or the better of the middle two, since its figures belong together."""
    return sorted(measurements, key=lambda measurement: measurement.tokens_per_s)[len(measurements) // 2]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", help="ours, NAME=URL or NAME=COMMAND; several take turns")
    parser.add_argument("--model", choices=SHAPES, default="small", help="shape of the random weights")
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face folder instead of random weights")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default: all")
    parser.add_argument("--adapters", type=int, default=0, metavar="N", help="what N adapters cost our engine")
    parser.add_argument(
        "--runs", type=int, default=3, help="the median counts, of an even number the better of the middle two"
    )
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
