"""A gateway with a scripted member, and a hook that flags words and answers like OpenAI's moderation API."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import httpx

from tests.support.gateways import DEADLINE_S, Gateway, make_settings, running_gateway
from tests.support.scripted_members import Json, ScriptedMember, serving_script
from tests.support.tool_servers import ToolServer, serving_tool
from tests.support.valkey import ValkeyProcess

PRIVATE = {"outbound_private_networks": (ip_network("127.0.0.0/8"),)}
HI: list[Json] = [{"role": "user", "content": "Hi there"}]


def flagging(*words: str) -> Callable[[Json], Json]:
    """A hook that flags texts with one of these words, as violence but not as hate."""

    def answer(asked: Json) -> Json:
        hits = [any(word in text for word in words) for text in asked["input"]]
        return {"results": [{"flagged": hit, "categories": {"violence": hit, "hate": False}} for hit in hits]}

    return answer


def texts_at(hook: ToolServer) -> list[list[str]]:
    """The texts of each check that the hook received."""
    return [asked["input"] for _, asked in hook.calls]


@dataclass
class GuardedTenant:
    gateway: Gateway
    tenant_id: str
    key: str

    def client(self) -> httpx.AsyncClient:
        return self.gateway.client(self.key)

    async def guard(self, url: str, *, name: str = "words", **fields: Any) -> Json:
        draft = {"name": name, "url": url, "tenant_id": self.tenant_id, "deadline_ms": 30_000}
        return await self.gateway.post("/guardrails", draft | fields)

    async def ask(self, path: str = "/chat/completions", *, headers: Any = None, **fields: Any) -> httpx.Response:
        asked = {"model": "small", **({"messages": HI} if path.startswith("/chat") else {}), **fields}
        async with self.client() as client, asyncio.timeout(2 * DEADLINE_S):
            while True:
                reply = await client.post(path, json=asked, headers=headers)
                # On a machine that is slow for a moment the gateway may refuse a request as saturated.
                if reply.status_code != 503 or reply.json()["error"]["code"] != "saturated":
                    return reply
                await asyncio.sleep(0.1)

    async def scraped(self) -> str:
        async with httpx.AsyncClient() as scraper:
            return (await scraper.get(f"{self.gateway.origin}/metrics")).text


async def new_tenant(gateway: Gateway, *, tier: str = "enterprise") -> GuardedTenant:
    tenant = await gateway.post("/tenants", {"name": f"tenant-{uuid4().hex[:12]}", "tier": tier})
    made = await gateway.post("/keys", {"tenant_id": tenant["id"], "name": "k", "scopes": ["inference"]})
    return GuardedTenant(gateway, tenant["id"], made["key"])


@dataclass
class GuardrailScene(GuardedTenant):
    member: ScriptedMember
    hook: ToolServer


@asynccontextmanager
async def guardrail_scene(
    folder: Path,
    valkey: ValkeyProcess,
    script: Any,
    *,
    flagged: tuple[str, ...] = ("bomb",),
    engine: Literal["tiergate", "openai"] = "tiergate",
    tool_hosts: tuple[str, ...] = (),
    **guardrail: Any,
) -> AsyncIterator[GuardrailScene]:
    """guardrail: fields of the guardrail."""
    async with AsyncExitStack() as stack:
        member = await stack.enter_async_context(serving_script(script, engine=engine))
        hook = await stack.enter_async_context(serving_tool(answers=flagging(*flagged)))
        made = make_settings(folder, valkey.url, pools=member.pools, tool_hosts=tool_hosts, **PRIVATE)
        gateway = await stack.enter_async_context(running_gateway(made))
        await gateway.post("/prices", {"model_id": "m", "prompt_nanousd": 100, "completion_nanousd": 400})
        tenant = await new_tenant(gateway)
        scene = GuardrailScene(gateway, tenant.tenant_id, tenant.key, member, hook)
        await scene.guard(hook.url, **guardrail)
        yield scene
