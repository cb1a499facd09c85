"""A gateway over a scripted worker, and a tenant whose key may ask it and see what was spent."""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

from router.fleet import usable_members
from tests.support.consoles import Visit
from tests.support.gateways import Gateway, eventually, make_settings, running_gateway
from tests.support.scripted_members import Json, ScriptedMember, Turn, serving_script
from tests.support.valkey import ValkeyProcess

PATH = "/dashboard/playground"


@dataclass(frozen=True)
class PlaygroundScene:
    gateway: Gateway
    member: ScriptedMember
    tenant_id: str
    key_id: str
    key: str

    @staticmethod
    async def token_of(visitor: Visit, path: str = PATH) -> str:
        reply = await visitor.http.get(path)
        found = re.search(r'name="token" value="([^"]+)"', reply.text)
        assert found is not None, reply.text
        return found[1]

    @staticmethod
    def text_of(events: list[tuple[str, str]]) -> str:
        chunks = [json.loads(data) for name, data in events if name == "message" and data != "[DONE]"]
        choices = [choice for chunk in chunks for choice in chunk.get("choices", [])]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


@asynccontextmanager
async def running_playground(
    tmp_path: Path,
    valkey: ValkeyProcess,
    script: Callable[[Json], Turn],
    *,
    engine: Literal["tiergate", "openai"] = "openai",
) -> AsyncIterator[PlaygroundScene]:
    async with serving_script(script, engine=engine) as member:
        settings = make_settings(tmp_path, valkey.url, pools=member.pools)
        async with running_gateway(settings) as gateway:
            fleet = gateway.services.registry
            await eventually(lambda: usable_members(fleet.fleet.pools["small"]))
            await gateway.post("/prices", {"model_id": "m", "prompt_nanousd": 1000, "completion_nanousd": 4000})
            tenant = await gateway.post("/tenants", {"name": f"tenant-{uuid4().hex[:8]}", "tier": "enterprise"})
            scopes = ["inference", "usage"]
            made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": scopes})
            yield PlaygroundScene(gateway, member, tenant["id"], made["id"], made["key"])


async def read_stream(visitor: Visit, fields: Mapping[str, str]) -> list[tuple[str, str]]:
    """The events of one column's answer, whose own are called `message`."""
    page = await visitor.page(PATH)
    token = re.search(r'name="token" value="([^"]+)"', page)
    assert token is not None
    form = {"column": "0", "token": token[1], **fields}
    events: list[tuple[str, str]] = []
    async with visitor.http.stream("POST", f"{PATH}/answer", data=form) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream"), (await reply.aread(), reply.status_code)
        text = (await reply.aread()).decode()
    for block in re.split(r"\n\n+", text):
        lines = block.split("\n")
        name = next((line[7:] for line in lines if line.startswith("event: ")), "message")
        data = [line[6:] for line in lines if line.startswith("data: ")]
        if data:
            events.append((name, "\n".join(data)))
    return events
