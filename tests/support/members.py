"""Pool members unlike any worker of ours: ones that fail on purpose, and a foreign OpenAI-compatible server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from protocol.load import LoadReport

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving_member(
    handler: Handler,
    *,
    worker_id: str = "w",
    num_waiting: int = 0,
    adapters: tuple[str, ...] = (),
    max_model_len: int = 512,
    models: Handler | None = None,
) -> AsyncIterator[str]:
    """The URL of a server that reports a load, answers completions with `handler`, and lists models with `models`."""
    report = LoadReport(
        worker_id=worker_id,
        model="m",
        model_version="v1",
        pool=None,
        adapters=adapters,
        num_running=0,
        num_waiting=num_waiting,
        max_num_seqs=8,
        max_waiting=64,
        max_model_len=max_model_len,
        num_blocks=8,
        num_free_blocks=8,
        block_size=16,
        is_draining=False,
        prompt_tokens_total=0,
        completion_tokens_total=0,
        discarded_tokens_total=0,
    )

    async def load(_request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def no_models(_request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    app = web.Application()
    app.router.add_get("/load", load)
    app.router.add_get("/v1/models", models or no_models)
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_post("/v1/completions", handler)
    app.router.add_post("/v1/embeddings", handler)
    async with serving_app(app) as url:
        yield url


@asynccontextmanager
async def serving_path(path: str, handler: Handler) -> AsyncIterator[str]:
    """The URL of a server that answers only GET of this path."""
    app = web.Application()
    app.router.add_get(path, handler)
    async with serving_app(app) as url:
        yield url


@asynccontextmanager
async def serving_app(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def pools(*members: dict[str, Any]) -> dict[str, Any]:
    return {"small": {"model": "m", "context_window": 512, "members": list(members)}}


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def be_full(_request: web.Request) -> web.StreamResponse:
    return web.json_response(
        {"error": {"message": "full", "type": "overloaded_error"}}, status=503, headers={"Retry-After": "7"}
    )


def stream_of(*events: bytes, is_cut: bool = False) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        if is_cut:
            assert request.transport is not None
            request.transport.close()
        return response

    return answer
