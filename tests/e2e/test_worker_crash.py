"""kill -9 of the only worker of a pool in mid-stream: it is restarted, and the stream goes on."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.platform import Platform, start_platform, stop, wait_until

BODY = {
    "model": "large",
    "messages": [{"role": "user", "content": "What is 17 + 25?"}],
    "max_tokens": 1500,
    "min_tokens": 1500,
    "temperature": 0,
    "stream": True,
}


@pytest.mark.long
def test_a_stream_outlives_its_worker(tmp_path: Path) -> None:
    platform = start_platform(tmp_path / "data")
    try:
        undisturbed = "".join(_stream(platform))
        pieces = _stream(platform)
        begun = [next(pieces) for _ in range(20)]
        for pid in platform.pids_of("worker"):
            os.kill(pid, signal.SIGKILL)
        assert "".join([*begun, *pieces]) == undisturbed
        wait_until(lambda: len(platform.usage_rows()) == 2, deadline_s=60)
        rows = platform.usage_rows()
        assert [(row["status"], row["prompt_tokens"], row["completion_tokens"]) for row in rows] == [
            ("ok", rows[0]["prompt_tokens"], 1500)
        ] * 2
        assert len({row["worker_id"] for row in rows}) == 2
    finally:
        stop(platform.process)


def _stream(platform: Platform) -> Iterator[str]:
    headers = {"Authorization": f"Bearer {platform.enterprise_key}"}
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", f"{platform.base_url}/chat/completions", json=BODY, headers=headers) as reply,
    ):
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                yield chunk["choices"][0]["delta"].get("content") or ""
