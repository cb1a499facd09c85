"""A gateway with a scripted member, and a client whose requests belong to a session."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.gateways import DEADLINE_S, Gateway, make_settings, running_gateway
from tests.support.scripted_members import Json, ScriptedMember, serving_script
from tests.support.server_tool_scenes import Engine
from tests.support.valkey import ValkeyProcess


@dataclass
class SessionScene:
    gateway: Gateway
    member: ScriptedMember
    tenant_id: str
    key: str

    def client(self) -> httpx.AsyncClient:
        return self.gateway.client(self.key)

    async def ask(self, *messages: Json | str, session: str | None = "s", **fields: Any) -> httpx.Response:
        body = {"model": "small", "messages": [user(each) if isinstance(each, str) else each for each in messages]}
        headers = {} if session is None else {"X-Session-Id": session}
        async with self.client() as client, asyncio.timeout(2 * DEADLINE_S):
            while True:
                reply = await client.post("/chat/completions", json=body | fields, headers=headers)
                # On a machine that is slow for a moment the gateway may refuse a request as saturated.
                if reply.status_code != 503 or reply.json()["error"]["code"] != "saturated":
                    return reply
                await asyncio.sleep(0.1)

    async def ask_until_not(self, status: int, *messages: Json | str, session: str = "s") -> httpx.Response:
        async with asyncio.timeout(DEADLINE_S):
            while (reply := await self.ask(*messages, session=session)).status_code == status:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return reply

    async def read(self, session: str = "s") -> Json:
        async with self.client() as client:
            found: Json = (await client.get(f"/sessions/{session}")).json()
        return found

    async def choose(self, **policy: Any) -> None:
        reply = await self.gateway.admin.patch(f"/tenants/{self.tenant_id}/sessions", json=policy)
        assert reply.status_code == 200, reply.text

    def seen(self, number: int = -1) -> list[tuple[str, Any]]:
        """The (role, content) pairs of the messages in a request that the member received."""
        return [(each["role"], each["content"]) for each in self.member.bodies[number]["messages"]]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


@asynccontextmanager
async def session_scene(
    folder: Path, valkey: ValkeyProcess, script: Any, *, engine: Engine = "openai", **settings: Any
) -> AsyncIterator[SessionScene]:
    async with AsyncExitStack() as stack:
        member = await stack.enter_async_context(serving_script(script, engine=engine))
        made = make_settings(folder, valkey.url, pools=member.pools, **settings)
        gateway = await stack.enter_async_context(running_gateway(made))
        await gateway.post("/prices", {"model_id": "m", "prompt_nanousd": 100, "completion_nanousd": 400})
        tenant = await gateway.post("/tenants", {"name": "t", "tier": "enterprise"})
        key = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": ["inference"]})
        yield SessionScene(gateway, member, tenant["id"], key["key"])
