"""A model's decode step: CUDA graph against eager, as a fraction of the roofline, and the cost of adapters."""

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.models import LLAMA_7B, LLAMA_8B, TINY, RandomModel, Shape, decoding
from benchmarks.gpu.report import Report, Row, failure
from worker.engine.gpu_runner import GpuRunner
from worker.engine.sequence import Chunk

_CONTEXT = 1024
_NUM_STEPS = 30
_FEW_LAYERS = 8
"""Layers of the shape on which adapters are compared. On these 8 layers, 128 adapters of rank 64 already take about as
much memory as the model's 32 layers."""


def check_graphs(report: Report, *, device: str, new_graph: Callable[[], Any] | None) -> None:
    """Compare tokens and log-probabilities of a step, with adapters, in a CUDA graph and launched kernel by kernel."""
    model = RandomModel(TINY, ranks=(4, 40), device=device, dtype=torch.bfloat16)
    for batch in (1, 4) if device == "cpu" else (1, 2, 4, 8, 32, 64):
        row: Row = {"name": f"graph against eager, batch {batch}"}
        try:
            answers = []
            for options in ({"new_graph": new_graph}, {"is_eager": True}):
                torch.manual_seed(0)
                runner = model.runner(batch=batch, length=40, **options)
                for cache in runner._caches:
                    cache.copy_(torch.linspace(-1, 1, cache.numel(), device=device).view_as(cache))
                chunks = decoding(batch, 40, (-1, 0, 1), num_logprobs=3)
                answers.append(runner.launch(chunks).wait().tokens)
            verdict = "right" if answers[0] == answers[1] and all(answers[0]) else "differs"
        except Exception as error:
            verdict = failure(error)
        report.put(row | {"verdict": verdict})


def measure_steps(report: Report, *, device: str, is_timed: bool, has_time: Callable[[], bool]) -> None:
    # 7B: all heads have keys of their own, so that 256 sequences would take 137 GB.
    shapes = {"8B": (LLAMA_8B, (1, 32, 256)), "7B": (LLAMA_7B, (1, 32, 64))} if is_timed else {"tiny": (TINY, (2,))}
    length = _CONTEXT if is_timed else 40
    for name, (shape, batches) in shapes.items():
        for ranks in ((), (16,) * 8) if is_timed else ((), (16, 20)):
            release()
            model = _try(report, f"{name}, {len(ranks)} adapters", lambda: RandomModel(
                shape, ranks=ranks, device=device, dtype=torch.bfloat16))  # noqa: B023  # fmt: skip
            for batch in batches if model is not None else ():
                for is_eager in (False, True) if is_timed else (True,):
                    kind = "eager" if is_eager else "graph"
                    row: Row = {"name": f"decode step, {name}, {kind}, batch {batch}, {len(ranks)} adapters"}
                    if not has_time():
                        report.put(row | {"verdict": "no time left"})
                        continue
                    report.put(row | _measured(report, model, batch, length, is_eager=is_eager, is_timed=is_timed))
            del model


def measure_lora(report: Report, *, device: str, is_timed: bool, has_time: Callable[[], bool]) -> None:
    """Measure the ratio of a step with a number of distinct adapters to the step without adapters."""
    shape = _with_layers(LLAMA_7B, _FEW_LAYERS) if is_timed else TINY
    base: dict[int, float] = {}
    for batch, count, rank in _mixes() if is_timed else ((3, 0, 0), (3, 2, 8)):
        ranks = [rank or (8, 16, 32, 64)[i % 4] for i in range(count)]
        kind = f"{count} adapters of {f'rank {rank}' if rank else 'ranks 8 to 64'}" if count else "base"
        row: Row = {"name": f"LoRA, 7B shape, {shape.num_layers} layers, batch {batch}, {kind}"}
        if not has_time():
            report.put(row | {"verdict": "no time left"})
            continue
        release()
        length = _CONTEXT if is_timed else 20
        model = _try(report, row["name"], lambda: RandomModel(shape, ranks=ranks, device=device, dtype=torch.bfloat16))  # noqa: B023
        if model is None:
            continue
        found = _measured(report, model, batch, length, is_eager=not is_timed, is_timed=is_timed)
        if "seconds" in found and not count:
            base[batch] = found["seconds"]
        elif "seconds" in found and batch in base:
            found["over_base"] = found["seconds"] / base[batch]
            floor = sum(shape.adapter_bytes(each, 2) for each in ranks[:batch]) / report.limits["copy_bytes_per_s"]
            found["of_lora_floor"] = (found["seconds"] - base[batch]) / floor
        report.put(row | found)
        del model


def _mixes() -> Iterator[tuple[int, int, int]]:
    """(batch, distinct adapters, rank); rank 0 stands for mixed ranks."""
    for batch in (32, 1, 8, 128, 256):
        yield batch, 0, 0
        for count in (1, 8, 32, 128):
            if count <= batch:
                for rank in (8, 16, 64, 0):
                    yield batch, count, rank


def _measured(
    report: Report, model: RandomModel, batch: int, length: int, *, is_eager: bool, is_timed: bool
) -> dict[str, Any]:
    release()
    try:
        runner = model.runner(batch=batch, length=length, is_eager=is_eager)
        chunks = decoding(batch, length, range(len(model.ranks)) if model.ranks else (-1,))
        if not all(runner.launch(chunks).wait().tokens):
            return {"verdict": "its logits are not finite"}
        seconds = _step_seconds(runner, chunks, num_steps=_NUM_STEPS if is_timed else 1)
    except Exception as error:
        return {"verdict": failure(error)}
    shape = model.shape
    num_bytes = shape.weight_bytes(2) + shape.kv_bytes(batch * length, 2)
    num_bytes += sum(shape.adapter_bytes(rank, 2) for rank in model.ranks[:batch])
    num_products = batch * shape.weight_bytes(2)
    floor = max(num_bytes / report.limits["copy_bytes_per_s"], num_products / report.limits["products_per_s"])
    return {"verdict": "right", "seconds": seconds, "of_roofline": floor / seconds, "tokens_per_s": batch / seconds}


def _step_seconds(runner: GpuRunner, chunks: list[Chunk], *, num_steps: int) -> float:
    """Seconds per step in the way of the engine's loop, which launches a step before it reads the previous one."""
    pending = runner.launch(chunks)
    begun = time.perf_counter()
    for _ in range(num_steps):
        pending, last = runner.launch(chunks), pending
        last.wait()
    seconds = (time.perf_counter() - begun) / num_steps
    pending.wait()
    return seconds


def _try(report: Report, name: str, make: Callable[[], RandomModel]) -> RandomModel | None:
    try:
        return make()
    except Exception as error:
        report.put({"name": name, "verdict": failure(error)})
        return None


def _with_layers(shape: Shape, num_layers: int) -> Shape:
    return Shape(**(vars(shape) | {"num_layers": num_layers}))


def release() -> None:
    """Release the memory of the last model, including its graphs."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
