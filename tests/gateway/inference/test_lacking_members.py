"""What a server of another engine lacks, as its operator says, is refused by name and never sent there."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.settings import MemberConfig
from tests.support.gateways import make_settings, running_gateway
from tests.support.members import pools, serving_member
from tests.support.valkey import ValkeyProcess

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
STRICT: dict[str, Any] = {"type": "function", "function": {"name": "f", "strict": True}}
NAMED = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9}

CASES: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]], str]] = [
    ("tools", [{"tools": [TOOL]}], [{"tools": [TOOL], "tool_choice": "none"}], "tools"),
    (
        "tool_choice",
        [{"tools": [TOOL], "tool_choice": choice} for choice in ("required", NAMED, ALLOWED)],
        [{"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "auto"}],
        "tool_choice",
    ),
    (
        "parallel_tool_calls",
        [{"tools": [TOOL], "parallel_tool_calls": False}],
        [{"tools": [TOOL], "parallel_tool_calls": True}],
        "parallel_tool_calls",
    ),
    ("strict", [{"tools": [STRICT]}], [{"tools": [TOOL]}], "tools"),
    ("json_schema", [{"response_format": SCHEMA}], [{"response_format": {"type": "json_object"}}], "response_format"),
    (
        "json_object",
        [{"response_format": {"type": "json_object"}}],
        [{"response_format": {"type": "text"}}],
        "response_format",
    ),
    ("reasoning_effort", [{"reasoning_effort": "low"}], [{}], "reasoning_effort"),
    ("logprobs", [{"logprobs": True}], [{"logprobs": False}], "logprobs"),
]


async def test_each_is_refused_where_it_is_asked_for_and_only_there(tmp_path: Path, valkey: ValkeyProcess) -> None:
    num_sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal num_sent
        num_sent += 1
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        return web.json_response({"id": "x", "model": "m", "choices": [choice], "usage": usage})

    async with serving_member(answer) as url:
        for feature, refused, taken, field in CASES:
            folder = tmp_path / feature
            await asyncio.to_thread(folder.mkdir)
            listed = pools({"url": url, "engine": "openai", "lacks": [feature]})
            async with (
                running_gateway(make_settings(folder, valkey.url, pools=listed)) as gateway,
                gateway.client(await gateway.make_key()) as client,
            ):
                num_before = num_sent
                for fields in refused:
                    reply = await client.post("/chat/completions", json=BODY | fields)
                    error = reply.json()["error"]
                    assert (reply.status_code, error["param"], error["code"]) == (400, field, "unsupported"), error
                    assert feature in error["message"]
                assert num_sent == num_before
                for fields in taken:
                    reply = await client.post("/chat/completions", json=BODY | fields)
                    assert reply.status_code == 200, reply.text
                assert num_sent == num_before + len(taken)


def test_a_worker_of_ours_lacks_nothing_by_configuration() -> None:
    with pytest.raises(ValueError, match="tells itself what it refuses"):
        MemberConfig.model_validate({"url": "http://one", "lacks": ["tools"]})
    with pytest.raises(ValueError, match="lacks"):
        MemberConfig.model_validate({"url": "http://one", "engine": "openai", "lacks": ["magic"]})
