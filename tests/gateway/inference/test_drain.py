"""Requests that the time for draining is too short for: told so, and free."""

import asyncio
import json
from pathlib import Path

from aiohttp import web

from tests.support.gateways import durable_events, eventually
from tests.support.scripted_members import Turn
from tests.support.session_scenes import session_scene
from tests.support.valkey import ValkeyProcess

CHUNK = {"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}]}


async def begin_and_hang(request: web.Request) -> web.StreamResponse:
    if (await request.json()).get("stream"):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + json.dumps(CHUNK).encode() + b"\n\n")
    await asyncio.Event().wait()
    raise AssertionError


async def test_requests_that_outlast_the_drain_are_told_so_and_not_billed(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    answer = Turn(texts=("never",))
    async with session_scene(tmp_path, valkey, lambda _: answer, drain_s=1) as scene, scene.client() as client:
        scene.member.interrupt = begin_and_hang
        body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
        whole = asyncio.create_task(client.post("/chat/completions", json=body))
        response = asyncio.create_task(client.post("/responses", json={"model": "small", "input": "Hi"}))
        stream = asyncio.create_task(client.post("/chat/completions", json=body | {"stream": True}))
        await eventually(lambda: len(scene.member.bodies) == 3)
        # The first chunk is on its way to the client.
        await eventually(lambda: scene.gateway.services.outbox.num_under_way == 3)
        scene.gateway.server.should_exit = True
        for each in (await whole, await response):
            assert (each.status_code, each.json()["error"]["code"]) == (503, "unavailable")
            assert int(each.headers["retry-after"]) > 0
        told = (await stream).text
        assert '"code":"unavailable"' in told and "[DONE]" not in told
        await eventually(lambda: len(durable_events(scene.gateway)) == 3)
        assert {(each.status, each.cost_nanousd, each.error_code) for each in durable_events(scene.gateway)} == {
            ("error", 0, "unavailable")
        }
