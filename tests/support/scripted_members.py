"""A pool member that answers by a script, in the format of our own worker or of a foreign server."""

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from protocol.accounting import DONE_EVENT, Accounting, accounting_comment, data_event, tokens_comment
from tests.support.members import serving_member

Json = dict[str, Any]
WINDOW = 4096
_numbers = itertools.count()


@dataclass(frozen=True)
class Turn:
    """One answer: pieces of text, then calls as (name, arguments)."""

    texts: Sequence[str] = ()
    calls: Sequence[tuple[str, str]] = ()
    finish_reason: str | None = None
    prompt_tokens: int = 11
    completion_tokens: int = 5

    @property
    def reason(self) -> str:
        return self.finish_reason or ("tool_calls" if self.calls else "stop")

    @property
    def usage(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 1},
        }

    def message(self) -> Json:
        calls = [
            {"id": f"call{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(self.calls)
        ]
        message: Json = {"role": "assistant", "content": "".join(self.texts) or None}
        return message | ({"tool_calls": calls} if calls else {})


@dataclass
class ScriptedMember:
    script: Sequence[Turn] | Callable[[Json], Turn]
    engine: Literal["tiergate", "openai"] = "openai"
    url: str = ""
    bodies: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    interrupt: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
    """Called before each answer; a response that it returns replaces the answer."""

    @property
    def pools(self) -> Json:
        member = {"url": self.url, "engine": self.engine, "model": "m"}
        return {"small": {"model": "m", "context_window": WINDOW, "members": [member]}}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        number = len(self.bodies) - 1
        if self.interrupt is not None and (instead := await self.interrupt(request)) is not None:
            return instead
        turn = self.script(body) if callable(self.script) else self.script[number]
        head = {"id": f"chatcmpl-{next(_numbers)}", "created": next(_numbers), "model": "m"}
        if body.get("stream"):
            return await self._stream(request, turn, head, shows_usage=bool(body.get("stream_options")))
        choice = {"index": 0, "message": turn.message(), "finish_reason": turn.reason, "logprobs": None}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": turn.usage}
        if self.engine == "openai":
            return web.json_response(whole)
        response = await _begin(request)
        told = tokens_comment(list(range(1, turn.completion_tokens + 1)))
        await response.write(told + self._accounting(turn) + data_event(json.dumps(whole).encode()) + DONE_EVENT)
        return response

    async def _stream(self, request: web.Request, turn: Turn, head: Json, *, shows_usage: bool) -> web.StreamResponse:
        deltas: list[Json] = [{"role": "assistant", "content": ""}, *({"content": text} for text in turn.texts)]
        for i, (name, arguments) in enumerate(turn.calls):
            opened = {"index": i, "id": f"call{i}", "type": "function", "function": {"name": name, "arguments": ""}}
            deltas.append({"tool_calls": [opened]})
            half = len(arguments) // 2
            for part in (arguments[:half], arguments[half:]):
                deltas.append({"tool_calls": [{"index": i, "function": {"arguments": part}}]})
        choices: list[list[Json]] = [
            *([{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas),
            [{"index": 0, "delta": {}, "finish_reason": turn.reason}],
        ]
        response = await _begin(request)
        for number, each in enumerate(choices):
            chunk = {**head, "object": "chat.completion.chunk", "choices": each}
            told = tokens_comment([number + 1]) if self.engine == "tiergate" else b""
            await response.write(told + data_event(json.dumps(chunk).encode()))
        end = b""
        if shows_usage:
            chunk = {**head, "object": "chat.completion.chunk", "choices": [], "usage": turn.usage}
            end += data_event(json.dumps(chunk).encode())
        await response.write(end + (self._accounting(turn) if self.engine == "tiergate" else b"") + DONE_EVENT)
        return response

    def _accounting(self, turn: Turn) -> bytes:
        return accounting_comment(
            Accounting(
                prompt_tokens=turn.prompt_tokens,
                cached_prompt_tokens=1,
                completion_tokens=turn.completion_tokens,
                queue_ms=1.0,
                compute_ms=1.0,
                worker_id="w",
                finish_reason=turn.reason,
            )
        )


async def _begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


@asynccontextmanager
async def serving_script(
    script: Sequence[Turn] | Callable[[Json], Turn], *, engine: Literal["tiergate", "openai"] = "openai"
) -> AsyncIterator[ScriptedMember]:
    member = ScriptedMember(script, engine)
    async with serving_member(member.answer, max_model_len=WINDOW) as url:
        member.url = url
        yield member
