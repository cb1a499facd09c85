"""Without a member's tokenizer only a bound of a prompt's length is known, a token a byte. Alone it refuses nothing."""

from pathlib import Path

import pytest
from aiohttp import web

from tests.support.gateways import durable_events, make_settings, running_gateway
from tests.support.members import serving_member
from tests.support.valkey import ValkeyProcess

NUM_TOKENS = 7000
TEXT = "words " * 6_700
"""40,200 bytes. The free tier has 40,000 tokens a minute, and prompts of up to 32,768."""


async def answer(request: web.Request) -> web.Response:
    await request.read()
    usage = {"prompt_tokens": NUM_TOKENS, "total_tokens": NUM_TOKENS}
    if request.path.endswith("/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}]
        return web.json_response({"object": "list", "model": "m", "data": data, "usage": usage})
    choice: dict[str, object] = {"index": 0, "finish_reason": "stop"}
    choice |= {"message": {"role": "assistant", "content": "Yes."}} if "/chat/" in request.path else {"text": "Yes."}
    usage["completion_tokens"] = 5
    return web.json_response({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})


@pytest.mark.parametrize("tier", ["enterprise", "free"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
        ("/completions", {"prompt": TEXT}),
        ("/embeddings", {"input": TEXT}),
    ],
)
async def test_what_may_fit_is_admitted_and_counted_as_the_member_says(
    tmp_path: Path, valkey: ValkeyProcess, tier: str, path: str, fields: dict[str, object]
) -> None:
    async with serving_member(answer) as url:
        members = [{"url": url, "engine": "openai", "model": "m"}]
        pools = {"small": {"model": "m", "context_window": 32_768, "members": members}}
        async with running_gateway(make_settings(tmp_path, valkey.url, pools=pools)) as gateway:
            async with gateway.client(await gateway.make_key(tier=tier)) as client:
                reply = await client.post(path, json={"model": "small", **fields})
                assert reply.status_code == 200, reply.text
            [billed] = durable_events(gateway)
            assert billed.prompt_tokens == NUM_TOKENS


async def test_what_is_likely_too_long_for_a_limit_is_refused(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with serving_member(answer) as url:
        members = [{"url": url, "engine": "openai", "model": "m"}]
        pools = {"small": {"model": "m", "context_window": 200_000, "members": members}}
        async with (
            running_gateway(make_settings(tmp_path, valkey.url, pools=pools)) as gateway,
            gateway.client(await gateway.make_key(tier="free")) as client,
        ):
            body = {"model": "small", "messages": [{"role": "user", "content": TEXT * 3}]}
            reply = await client.post("/chat/completions", json=body)
            assert reply.status_code == 429 and reply.json()["error"]["code"] == "tokens_per_minute"
