"""An OpenAI-compatible server that is not ours. It answers with `max_tokens` tokens and reports them in `usage`."""

import json
from contextlib import suppress

from aiohttp import web


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    num_completion = int(body.get("max_tokens") or body.get("max_completion_tokens") or 1)
    num_prompt = len(body["messages"][-1]["content"].split())
    usage = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }
    head = {"id": "c", "created": 1, "model": "m"}
    if not body.get("stream"):
        message = {"role": "assistant", "content": "word " * num_completion}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    head["object"] = "chat.completion.chunk"
    # The gateway that sent the request may be killed meanwhile.
    with suppress(ConnectionError):
        for _ in range(num_completion):
            choice = {"index": 0, "delta": {"role": "assistant", "content": "word "}, "finish_reason": None}
            await response.write(_event({**head, "choices": [choice]}))
        await response.write(_event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        await response.write(_event({**head, "choices": [], "usage": usage}) + b"data: [DONE]\n\n")
    return response


def _event(chunk: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
