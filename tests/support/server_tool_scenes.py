"""A gateway with a scripted member, a tool's server, and the tool `weather` registered for everybody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

import httpx

from tests.support.gateways import Gateway, make_settings, running_gateway
from tests.support.scripted_members import Json, ScriptedMember, serving_script
from tests.support.tool_servers import ToolServer, serving_tool
from tests.support.valkey import ValkeyProcess

Engine = Literal["tiergate", "openai"]
PRIVATE = {"outbound_private_networks": (ip_network("127.0.0.0/8"),), "tool_hosts": ("127.0.0.1",)}
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BODY: Json = {
    "model": "small",
    "messages": [{"role": "user", "content": "Weather in Paris?"}],
    "server_tools": ["weather"],
}


@dataclass
class Scene:
    gateway: Gateway
    member: ScriptedMember
    tool: ToolServer
    key: str

    def client(self) -> httpx.AsyncClient:
        return self.gateway.client(self.key)

    async def ask(self, **fields: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.post("/chat/completions", json=BODY | fields)

    async def register(self, name: str, **fields: Any) -> Json:
        draft = {"name": name, "description": f"The {name}", "parameters": SCHEMA, "url": self.tool.url}
        return await self.gateway.post("/tools", draft | fields)

    async def audited(self) -> list[Json]:
        page = await self.gateway.admin.get("/audit", params={"limit": 1000})
        return [entry["detail"] for entry in page.json()["data"] if entry["action"] == "tool.call"]

    async def until_audited(self, num_calls: int) -> list[Json]:
        async with asyncio.timeout(30):
            while len(found := await self.audited()) < num_calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found


@asynccontextmanager
async def scene(
    folder: Path,
    valkey: ValkeyProcess,
    script: Any,
    *,
    engine: Engine = "openai",
    tool: Json | None = None,
    registered: Json | None = None,
    tier: Json | None = None,
    **settings: Any,
) -> AsyncIterator[Scene]:
    """tool: fields of the tool's server; registered: fields of its registration; tier: changes of the tenant's tier."""
    async with AsyncExitStack() as stack:
        member = await stack.enter_async_context(serving_script(script, engine=engine))
        server = await stack.enter_async_context(serving_tool(**(tool or {})))
        made = make_settings(folder, valkey.url, pools=member.pools, **(PRIVATE | settings))
        gateway = await stack.enter_async_context(running_gateway(made))
        await gateway.post("/prices", {"model_id": "m", "prompt_nanousd": 100, "completion_nanousd": 400})
        if tier is not None:
            assert (await gateway.admin.patch("/tiers/pro", json=tier)).status_code == 200
        found = Scene(gateway, member, server, await gateway.make_key(tier="pro"))
        await found.register("weather", **(registered or {}))
        yield found
