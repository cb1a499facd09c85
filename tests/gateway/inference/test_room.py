"""Requests are refused while their usage would find no room on the disk."""

from pathlib import Path

from tests.support.gateways import make_settings, running_gateway
from tests.support.members import hang_up, pools, serving_member
from tests.support.valkey import ValkeyProcess

BODY = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9}


async def test_without_room_requests_get_503_and_the_gateway_is_not_ready(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with serving_member(hang_up) as url:
        settings = make_settings(
            tmp_path,
            valkey.url,
            pools=pools({"url": url}),
            worker_key="key-of-these-members",
            outbox_min_free_bytes=2**60,
        )
        async with running_gateway(settings) as gateway, gateway.client(await gateway.make_key()) as client:
            reply = await client.post("/chat/completions", json=BODY)
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert "disk" in reply.json()["error"]["message"]
            ready = await client.get(f"{gateway.origin}/ready")
            assert ready.status_code == 503 and "outbox" in ready.json()["missing"]
