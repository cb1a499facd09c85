"""kill -9 of the gateway in mid-traffic: what reached `[DONE]` is on the bill, once."""

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.platform import Platform, start_platform, stop, wait_until

NUM_STREAMS = 16


@pytest.mark.long
def test_every_request_that_reached_done_has_exactly_one_row(tmp_path: Path) -> None:
    platform = start_platform(tmp_path / "data")
    try:
        finished: list[str] = []
        with ThreadPoolExecutor(NUM_STREAMS) as pool:
            workers = [pool.submit(_stream_until_broken, platform, finished) for _ in range(NUM_STREAMS)]
            wait_until(lambda: len(finished) >= 3 * NUM_STREAMS, deadline_s=60)
            [gateway_pid] = platform.pids_of("gateway")
            os.kill(gateway_pid, signal.SIGKILL)
            for worker in workers:
                worker.result(timeout=60)
        wait_until(lambda: _is_ready(platform), deadline_s=60)
        wait_until(lambda: set(finished) <= {row["request_id"] for row in platform.usage_rows()}, deadline_s=60)
        counts = Counter(row["request_id"] for row in platform.usage_rows())
        assert all(count == 1 for count in counts.values())
        by_id = {row["request_id"]: row for row in platform.usage_rows()}
        assert all(by_id[request_id]["status"] == "ok" for request_id in finished)
    finally:
        stop(platform.process)


def _stream_until_broken(platform: Platform, finished: list[str]) -> None:
    headers = {"Authorization": f"Bearer {platform.enterprise_key}"}
    body = {"model": "auto", "messages": [{"role": "user", "content": "What is 17 + 25?"}], "stream": True}
    url = f"{platform.base_url}/chat/completions"
    with httpx.Client(timeout=30) as client:
        try:
            while True:
                with client.stream("POST", url, json=body, headers=headers) as reply:
                    assert reply.status_code == 200, reply.read()
                    if "data: [DONE]" in list(reply.iter_lines()):
                        finished.append(reply.headers["x-request-id"])
        except httpx.HTTPError:
            return


def _is_ready(platform: Platform) -> bool:
    try:
        return httpx.get(f"{platform.origin}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
