"""Listed members that tell nonsense of themselves: requests go to the others, and nobody meets an exception."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tests.gateway.inference.test_replicas import BODY, GOOD
from tests.support.gateways import durable_events, make_settings, running_gateway
from tests.support.members import hang_up, pools, serving_app, serving_member
from tests.support.valkey import ValkeyProcess

TRUE: dict[str, Any] = {
    "worker_id": "odd",
    "model": "m",
    "model_version": "v1",
    "pool": None,
    "adapters": [],
    **dict.fromkeys(("num_running", "num_waiting", "num_free_blocks"), 0),
    **dict.fromkeys(("max_num_seqs", "max_waiting", "num_blocks", "block_size"), 8),
    "max_model_len": 512,
    "is_draining": False,
    **dict.fromkeys(("prompt_tokens_total", "completion_tokens_total", "discarded_tokens_total"), 0),
}


def told(**changes: Any) -> bytes:
    return msgspec.json.encode(TRUE | changes)


@pytest.mark.parametrize(
    "report",
    [
        told(num_waiting=-1),
        told(num_running=-(2**60)),
        told(num_free_blocks=1e300),
        told(num_waiting="NaN"),
        told(num_waiting=0.5),
        told(max_model_len=0),
        told(adapters="all"),
        told().replace(b'"num_waiting":0', b'"num_waiting":NaN'),
        told()[:-1],
        b"[]",
        b"",
        b"\xff\xfe",
        b"<html>",
    ],
    ids=range(13),
)
async def test_a_report_that_cannot_be_true_takes_no_request(
    tmp_path: Path, valkey: ValkeyProcess, report: bytes
) -> None:
    async def load(_request: web.Request) -> web.Response:
        return web.Response(body=report, content_type="application/json")

    app = web.Application()
    app.router.add_get("/load", load)
    app.router.add_post("/v1/chat/completions", hang_up)
    async with serving_app(app) as odd, serving_member(GOOD, worker_id="good") as good:
        members = pools({"url": odd}, {"url": good}, {"url": good})
        settings = make_settings(tmp_path, valkey.url, pools=members, worker_key="key-of-these-members")
        async with running_gateway(settings) as gateway:
            pool = gateway.services.registry.fleet.pools["small"]
            assert [(each.url == odd, each.is_healthy) for each in pool.members] == [(True, False), (False, True)]
            async with gateway.client(await gateway.make_key()) as client:
                assert (await client.post("/chat/completions", json=BODY | {"stream": True})).status_code == 200
                assert (await client.post("/route", json=BODY)).status_code == 200
            [event] = durable_events(gateway)
            assert (event.status, event.num_attempts) == ("ok", 1)
