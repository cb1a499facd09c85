"""A client that leaves frees its blocks, whether it streams or not."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.running_worker import RunningWorker

LONG = {"model": "tiny", "prompt": "Hi", "max_tokens": 8000, "ignore_eos": True}


def wait_until(condition: Callable[[], bool], *, deadline_s: float = 10) -> None:
    ends_at = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < ends_at, "not in time"
        time.sleep(0.01)


def is_idle(worker: RunningWorker) -> bool:
    load = worker.load()
    return bool(load["num_running"] == 0 and load["num_free_blocks"] == load["num_blocks"])


def test_closing_a_stream_frees_its_blocks(worker: RunningWorker, http: httpx.Client) -> None:
    with http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as reply:
        lines = reply.iter_lines()
        for _ in range(20):
            next(lines)
        assert worker.load()["num_free_blocks"] < worker.load()["num_blocks"]
    wait_until(lambda: is_idle(worker))


def test_leaving_while_waiting_for_a_whole_answer_frees_its_blocks(worker: RunningWorker) -> None:
    before = worker.load()
    with worker.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=LONG | {"n": 2}, timeout=0.3)
    wait_until(lambda: is_idle(worker))
    assert 0 < grown(worker, before, "completion_tokens_total") < 16_000
    # Nobody got any of it.
    wait_until(
        lambda: grown(worker, before, "discarded_tokens_total") == grown(worker, before, "completion_tokens_total")
    )


def grown(worker: RunningWorker, before: dict[str, Any], name: str) -> int:
    return int(worker.load()[name] - before[name])


def test_what_nobody_got_is_counted(worker: RunningWorker, http: httpx.Client) -> None:
    before = worker.load()
    received = 0
    with http.stream(
        "POST", "/v1/completions", json=LONG | {"stream": True}, headers={"X-Tiergate-Accounting": "1"}
    ) as reply:
        for line in reply.iter_lines():
            received += line.count(",") + 1 if line.startswith(": tokens ") else 0
            if received > 30:
                break
    wait_until(lambda: is_idle(worker))
    after = worker.load()
    generated = after["completion_tokens_total"] - before["completion_tokens_total"]
    assert generated >= received
