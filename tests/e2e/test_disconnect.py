"""A client that leaves in mid-stream frees its blocks and pays for what it was sent."""

import json

import httpx

from tests.support.platform import Platform, wait_until


def test_leaving_frees_the_blocks_and_bills_the_tokens_sent(platform: Platform) -> None:
    headers = {"Authorization": f"Bearer {platform.enterprise_key}"}
    body = {
        "model": "large",
        "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
        "stream": True,
        "max_tokens": 1500,
        "ignore_eos": True,
    }
    chunks_seen = 0
    url = f"{platform.base_url}/chat/completions"
    with httpx.Client(timeout=30) as client, client.stream("POST", url, json=body, headers=headers) as reply:
        assert reply.status_code == 200, reply.read()
        request_id = reply.headers["x-request-id"]
        for line in reply.iter_lines():
            chunks_seen += line.startswith("data: {")
            if chunks_seen >= 10:
                break
    wait_until(lambda: _num_running(platform) == 0, deadline_s=5)
    wait_until(lambda: request_id in {row["request_id"] for row in platform.usage_rows()}, deadline_s=30)
    [row] = [row for row in platform.usage_rows() if row["request_id"] == request_id]
    assert row["status"] == "cancelled"
    assert 5 <= row["completion_tokens"] < 1500
    assert row["cost_nanousd"] > 0


def _num_running(platform: Platform) -> int:
    with platform.admin() as admin:
        workers = admin.get("/workers").raise_for_status().json()["data"]
    loads = [worker["load"] for worker in workers]
    assert loads, json.dumps(workers)
    return sum(load["num_running"] for load in loads)
