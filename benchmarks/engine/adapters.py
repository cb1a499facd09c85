"""Measures what adapters cost our engine: without adapters, with N unused ones, and with N used by requests in turn.

Ranks alternate between 8 and 16, on all seven projections. The floor is the time to read the adapters' bytes from
memory once per step, by the bandwidth of reading a large tensor with all threads.
"""

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.engine.report import summarize
from benchmarks.engine.servers import Server, running_server
from benchmarks.engine.workloads import CONCURRENCY, WORKLOADS
from worker.model.config import read_config
from worker.model.llama import projection_shapes

_RANKS = (8, 16)
_PAUSE_S = 1.0
_READ_BYTES = 1 << 29


async def compare_adapters(command: str, folder: Path, *, num_adapters: int, names: list[str], runs: int) -> None:
    """Measure all three in turn at each workload, `runs` times after one round that warms up."""
    adapters = {f"a{i}": make_adapter(folder, i) for i in range(num_adapters)}
    num_bytes = sum((path / "adapter_model.safetensors").stat().st_size for path in adapters.values())
    read_s = num_bytes / _bandwidth()
    print(f"{num_adapters} adapters, {num_bytes / 1e6:.1f} MB: read from memory in {read_s * 1e3:.2f} ms at best")
    options = "".join(f" --adapter {name}={path}" for name, path in adapters.items())
    async with contextlib.AsyncExitStack() as stack:
        base = await stack.enter_async_context(running_server("base", command, folder))
        unused = await stack.enter_async_context(running_server("unused", command + options, folder))
        used = replace(unused, name="used", adapters=tuple(adapters))
        for name in names:
            _print_costs(name, await _measure(name, (base, unused, used), runs), read_s)


async def _measure(name: str, servers: tuple[Server, ...], runs: int) -> dict[str, list[float]]:
    """Tokens per second of each run, by server."""
    speeds: dict[str, list[float]] = {server.name: [] for server in servers}
    for run in range(runs + 1):
        # The order is reversed every other round, so that no server always follows the same one.
        for server in servers if run % 2 else servers[::-1]:
            await asyncio.sleep(_PAUSE_S)
            streams, wall_s = await WORKLOADS[name](server, seed=run)
            if run > 0:
                speeds[server.name].append(summarize(server, name, streams, wall_s).tokens_per_s)
    return speeds


def _print_costs(name: str, speeds: dict[str, list[float]], read_s: float) -> None:
    base = statistics.median(speeds["base"])
    print(f"{name:>8} base   {base:>8,.1f} tokens/s")
    for kind in ("unused", "used"):
        costs = sorted(1 - each / own for each, own in zip(speeds[kind], speeds["base"], strict=True))
        line = f"{name:>8} {kind:<6} {statistics.median(speeds[kind]):>8,.1f} tokens/s, {len(costs)} pairs: costs "
        line += f"{statistics.median(costs):.1%} ({costs[0]:.1%} to {costs[-1]:.1%})"
        if kind == "used" and name in CONCURRENCY:
            step_s = CONCURRENCY[name] / base
            extra_s = CONCURRENCY[name] / statistics.median(speeds[kind]) - step_s
            line += f"; floor {read_s / (step_s + read_s):.1%}; a step takes {extra_s * 1e3:.2f} ms more, "
            line += f"{extra_s / read_s:.2f} times the floor"
        print(line)


def _bandwidth() -> float:
    """Bytes per second that all threads together read: the best of several runs."""
    numbers = torch.ones(_READ_BYTES // 8, dtype=torch.int64)
    times = []
    for _ in range(7):
        started = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - started)
    return _READ_BYTES / min(times)


def make_adapter(folder: Path, index: int) -> Path:
    """A PEFT folder beside the model's, made at the first call."""
    path = folder.with_name(f"{folder.name}-adapter-{index}")
    if path.exists():
        return path
    config, rank = read_config(folder), _RANKS[index % len(_RANKS)]
    generator = torch.Generator().manual_seed(index)
    weights = {}
    for layer in range(config.num_layers):
        for name, (out_size, in_size) in projection_shapes(config).items():
            block = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
            prefix = f"base_model.model.model.layers.{layer}.{block}.{name}"
            for side, shape in (("A", (rank, in_size)), ("B", (out_size, rank))):
                weight = torch.randn(shape, generator=generator) * shape[1] ** -0.5 * 0.1
                weights[f"{prefix}.lora_{side}.weight"] = weight.bfloat16()
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    save_file(weights, draft / "adapter_model.safetensors", metadata={"format": "pt"})
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "base_model_name_or_path": "small"}
    (draft / "adapter_config.json").write_text(json.dumps(fields | {"target_modules": list(projection_shapes(config))}))
    try:
        draft.rename(path)
    except OSError:
        # Another process was faster.
        shutil.rmtree(draft)
    return path
