"""Asks an OpenAI-compatible server for greedy replies, many at a time, and starts a worker to ask."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from demo.chat import TOOL_CALL, TOOL_CALL_END
from demo.corpus.items import Item

CONCURRENCY, TIMEOUT_S, MAX_TOKENS = 32, 300.0, 300


@dataclass(frozen=True)
class Reply:
    """text: the assistant's text, or for a tool call the JSON of its name and arguments."""

    text: str
    finish_reason: str
    num_tokens: int

    @property
    def written(self) -> str:
        """The text that the model itself wrote, without its end mark."""
        return f"{TOOL_CALL}\n{self.text}\n{TOOL_CALL_END}" if self.finish_reason == "tool_calls" else self.text


async def ask_all(
    url: str,
    model: str,
    items: list[Item],
    *,
    api_key: str = "none",
    max_tokens: int = MAX_TOKENS,
    must_call: bool = False,
) -> list[Reply]:
    """One greedy chat completion for each item, in the items' order.

    must_call: require the server to answer with a tool call wherever the right answer is one.
    """
    slots = asyncio.Semaphore(CONCURRENCY)
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, headers=headers) as client:

        async def ask(item: Item) -> Reply:
            body: dict[str, Any] = {
                "model": model,
                "messages": wire_messages(item.prompt),
                "temperature": 0,
                "max_tokens": max_tokens,
            }
            if item.tools:
                body["tools"] = item.tools
                if must_call and "tool_calls" in item.messages[-1]:
                    body["tool_choice"] = "required"
            async with slots:
                response = await client.post("/v1/chat/completions", json=body)
            if response.is_error:
                raise RuntimeError(f"{url} answered {response.status_code}: {response.text[:300]}")
            return _reply(response.json())

        return await asyncio.gather(*(ask(item) for item in items))


def shown_answer(item: Item) -> str:
    """The right answer in the form of `Reply.text`."""
    calls = item.messages[-1].get("tool_calls")
    return _shown_call(calls[0]["function"]) if calls else item.answer


def wire_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as OpenAI's schema requires them: tool calls have ids, and their arguments are a string."""
    wire = []
    for message in messages:
        if "tool_calls" in message:
            calls = [
                {
                    "id": f"call_{at}",
                    "type": "function",
                    "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
                }
                for at, call in enumerate(message["tool_calls"])
            ]
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": "call_0"}
        wire.append(message)
    return wire


def _reply(completion: dict[str, Any]) -> Reply:
    choice = completion["choices"][0]
    calls = choice["message"].get("tool_calls")
    text = _shown_call(calls[0]["function"]) if calls else choice["message"].get("content") or ""
    return Reply(text, choice["finish_reason"], completion["usage"]["completion_tokens"])


def _shown_call(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except json.JSONDecodeError:
        # The call is incomplete, for example because it reached the token limit.
        return str(arguments)
    return json.dumps({"name": function["name"], "arguments": parsed}, ensure_ascii=False)


@contextmanager
def running_worker(
    model: Path, *, name: str, adapters: dict[str, Path], dtype: str = "auto", deadline_s: float = 120.0
) -> Iterator[str]:
    """A worker process on a free port serving `model` as `name`; yields its base URL once it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tiergate",
        "worker",
        "--model",
        str(model),
        "--port",
        str(port),
        "--name",
        name,
        "--dtype",
        dtype,
    ]
    for adapter, path in adapters.items():
        command += ["--adapter", f"{adapter}={path}"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        _wait_ready(f"http://127.0.0.1:{port}", process, deadline_s)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(url: str, process: "subprocess.Popen[bytes]", deadline_s: float) -> None:
    give_up_at = time.monotonic() + deadline_s
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended with status {process.returncode} before it was ready")
        try:
            if httpx.get(f"{url}/ready", timeout=10).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"the worker at {url} was not ready within {deadline_s:.0f} s")
