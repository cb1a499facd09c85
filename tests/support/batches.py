"""A gateway in front of a scripted member, and the requests of batch tests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai

from tests.support.gateways import DEADLINE_S, Gateway, eventually, make_settings, running_gateway
from tests.support.scripted_members import Json, ScriptedMember, Turn, serving_script

CHAT = "/v1/chat/completions"
TURN = Turn(texts=("four",), prompt_tokens=10, completion_tokens=5)


@asynccontextmanager
async def batch_scene(
    folder: Path, redis_url: str, *, script: Callable[[Json], Turn] = lambda _: TURN, **fields: Any
) -> AsyncIterator[tuple[Gateway, ScriptedMember]]:
    """A prompt token costs 100 nano-dollars, cached or not, and a completion token 400."""
    async with AsyncExitStack() as stack:
        member = await stack.enter_async_context(serving_script(script))
        settings = make_settings(folder, redis_url, pools=member.pools, **fields)
        gateway = await stack.enter_async_context(running_gateway(settings))
        await gateway.post("/prices", {"model_id": "m", "prompt_nanousd": 100, "completion_nanousd": 400})
        pools = gateway.services.registry
        await eventually(lambda: pools.fleet.pools["small"].members)
        yield gateway, member


def chat_line(custom_id: str, content: str = "2+2?", **body: Any) -> Json:
    asked = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": asked}


def jsonl(lines: Sequence[Json | str]) -> bytes:
    return "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines).encode()


@asynccontextmanager
async def client_of(gateway: Gateway, *, tier: str = "enterprise") -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a new tenant."""
    key = await gateway.make_key(tier=tier)
    async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0, timeout=DEADLINE_S) as client:
        yield client


async def start_batch(client: openai.AsyncOpenAI, content: bytes, **fields: Any) -> str:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    given: Json = {"endpoint": CHAT, "completion_window": "24h", **fields}
    return (await client.batches.create(input_file_id=file.id, **given)).id


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    """Wait until the batch has ended, and return it."""
    found: list[Any] = []

    async def look() -> bool:
        found[:] = [await client.batches.retrieve(batch_id)]
        return found[0].status in ("completed", "failed", "cancelled", "expired")

    await until(look)
    return found[0]


async def until(condition: Callable[[], Any]) -> None:

    async with asyncio.timeout(4 * DEADLINE_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def records(client: openai.AsyncOpenAI, file_id: str | None) -> list[Json]:
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]
