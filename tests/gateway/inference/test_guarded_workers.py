"""Guardrails in front of real workers: every door, streamed and whole."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.batches import ended, jsonl, records, start_batch
from tests.support.gateways import declare, durable_events, eventually, make_settings, running_gateway
from tests.support.guardrail_scenes import PRIVATE, GuardedTenant, flagging, new_tenant, texts_at
from tests.support.scripted_members import Json
from tests.support.tool_servers import ToolServer, serving_tool
from tests.support.valkey import ValkeyProcess
from tests.support.workers import WorkerProcess

ASKED: Json = {"max_tokens": 80, "temperature": 1, "seed": 7, "ignore_eos": True}
WINDOW = 10


@dataclass
class Guarded(GuardedTenant):
    hook: ToolServer

    async def start(self, **fields: Any) -> None:
        await self.guard(self.hook.url, window_chars=WINDOW, **fields)


@pytest.fixture
async def guarded(tmp_path: Path, fleet_valkey: ValkeyProcess, workers: list[WorkerProcess]) -> AsyncIterator[Guarded]:
    """A tenant without a guardrail yet, and a hook that flags nothing yet."""
    made = make_settings(tmp_path, fleet_valkey.url, **PRIVATE)
    async with serving_tool(answers=flagging()) as hook, running_gateway(made) as gateway:
        for worker in workers:
            await declare(gateway, worker.model_id, pool=worker.pool)
        services = gateway.services
        await eventually(lambda: all(services.registry.fleet.pools[worker.pool].members for worker in workers))
        await eventually(lambda: all(services.bundles.bundle_of(worker.pool) for worker in workers))
        tenant = await new_tenant(gateway)
        yield Guarded(gateway, tenant.tenant_id, tenant.key, hook)


def flagging_once(hook: ToolServer, number: int, *, place: int = 0) -> Callable[[Json], Json]:
    """Once, in the first check from this one on that has a text at this place, the hook flags that text."""
    is_over = False

    def answer(asked: Json) -> Json:
        nonlocal is_over
        is_now = not is_over and len(hook.calls) >= number and len(asked["input"]) > place
        is_over = is_over or is_now
        return {"results": [{"flagged": is_now and i == place} for i in range(len(asked["input"]))]}

    return answer


def chunks_of(stream: str) -> list[Json]:
    events = [line[6:] for line in stream.split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events
    return [json.loads(event) for event in events[:-1]]


def texts_by_choice(chunks: list[Json]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        said = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        texts[choice["index"]] = texts.get(choice["index"], "") + said
    return texts


def reasons_by_choice(chunks: list[Json]) -> dict[int, str]:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    reasons = {choice["index"]: choice["finish_reason"] for choice in choices}
    assert len(reasons) == len(choices), "each choice ends once"
    return reasons


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
async def test_streams_and_whole_answers_are_cut_and_billed_as_they_were_made(guarded: Guarded, path: str) -> None:
    prompt = {} if path.startswith("/chat") else {"prompt": "Hi there"}
    plain = chunks_of((await guarded.ask(path, stream=True, **ASKED, **prompt)).text)
    text = texts_by_choice(plain)[0]
    await guarded.start(checks="output")
    same = await guarded.ask(path, stream=True, stream_options={"include_usage": True}, **ASKED, **prompt)
    assert texts_by_choice(chunks_of(same.text)) == {0: text}
    assert reasons_by_choice(chunks_of(same.text)) == reasons_by_choice(plain) == {0: "length"}
    windows = texts_at(guarded.hook)
    assert len(windows) >= 3
    guarded.hook.answers = flagging_once(guarded.hook, len(windows) + 3)
    cut = await guarded.ask(path, stream=True, stream_options={"include_usage": True}, **ASKED, **prompt)
    chunks = chunks_of(cut.text)
    [said] = texts_by_choice(chunks).values()
    assert text.startswith(said) and 2 * WINDOW <= len(said) < len(text)
    assert reasons_by_choice(chunks) == {0: "content_filter"}
    events = {event.request_id: event for event in durable_events(guarded.gateway)}
    event = events[cut.headers["x-request-id"]]
    assert (event.status, event.finish_reason) == ("ok", "content_filter")
    assert event.cost_nanousd == event.prompt_tokens * 100 + event.completion_tokens * 400 > 0
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (event.prompt_tokens, event.completion_tokens)
    assert event.prompt_tokens == events[same.headers["x-request-id"]].prompt_tokens
    guarded.hook.answers = flagging_once(guarded.hook, len(guarded.hook.calls) + 1)
    whole = (await guarded.ask(path, **ASKED, **prompt, logprobs=1 if prompt else True)).json()
    [choice] = whole["choices"]
    assert (choice["finish_reason"], choice["logprobs"]) == ("content_filter", None)
    assert (choice["text"] if prompt else choice["message"]["content"]) == ""
    assert whole["usage"]["completion_tokens"] == ASKED["max_tokens"]


async def test_log_probabilities_are_held_back_with_their_text(guarded: Guarded) -> None:
    await guarded.start(checks="output")
    guarded.hook.answers = flagging_once(guarded.hook, 3)
    chunks = chunks_of((await guarded.ask(stream=True, logprobs=True, top_logprobs=1, **ASKED)).text)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    said = "".join(choice["delta"].get("content") or "" for choice in choices)
    tokens = [token for choice in choices for token in (choice["logprobs"] or {}).get("content", ())]
    shown = b"".join(bytes(token["bytes"]) for token in tokens)
    assert len(said) >= 2 * WINDOW
    assert shown.decode(errors="replace").startswith(said)
    assert len(shown) <= len(said.encode()) + 4, "no more than the bytes of a character that is not whole yet"


async def test_of_several_answers_only_the_one_that_is_blocked_ends(guarded: Guarded) -> None:
    fields = ASKED | {"n": 3}
    await guarded.start(checks="output")
    guarded.hook.answers = flagging_once(guarded.hook, 2, place=1)
    chunks = chunks_of((await guarded.ask(stream=True, **fields)).text)
    texts = texts_by_choice(chunks)
    reasons = reasons_by_choice(chunks)
    assert sorted(reasons.values()) == ["content_filter", "length", "length"]
    [blocked] = [index for index, reason in reasons.items() if reason == "content_filter"]
    others = [text for index, text in texts.items() if index != blocked]
    checks = [seen for check in texts_at(guarded.hook) for seen in check]
    # What the blocked one said was checked; the others said all that they had to, to the last check.
    said = texts.get(blocked, "")
    windows = [said[start : start + WINDOW] for start in range(max(0, len(said) - WINDOW + 1))]
    assert "".join(others) and all(any(window in seen for seen in checks) for window in windows)
    assert all(any(text.endswith(seen) for seen in checks) for text in others if text)
    guarded.hook.answers = flagging_once(guarded.hook, len(guarded.hook.calls) + 1, place=1)
    whole = (await guarded.ask(**fields)).json()["choices"]
    assert [bool(choice["message"]["content"]) for choice in whole] == [True, False, True]
    assert [choice["finish_reason"] for choice in whole] == ["length", "content_filter", "length"]


async def test_responses_and_sessions_go_the_same_way(guarded: Guarded) -> None:
    await guarded.start()
    client = openai.AsyncOpenAI(base_url=guarded.gateway.base_url, api_key=guarded.key)
    # What this model says is not known; all of it is flagged, and no input is.
    guarded.hook.answers = lambda asked: {"results": [{"flagged": "Hi" not in text} for text in asked["input"]]}
    response = await client.responses.create(model="small", input="Hi", max_output_tokens=20)
    assert (response.status, response.output_text) == ("incomplete", "")
    named = {"X-Session-Id": "s"}
    chunks = chunks_of((await guarded.ask(headers=named, stream=True, **ASKED)).text)
    assert reasons_by_choice(chunks) == {0: "content_filter"}
    guarded.hook.answers = flagging("bomb")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="small", input="a bomb")
    assert refused.value.code == "content_filter"
    refused_turn = await guarded.ask(headers=named, messages=[{"role": "user", "content": "bomb"}])
    assert refused_turn.json()["error"]["code"] == "content_filter"
    # Nothing of either turn is in the session.
    assert (await guarded.ask(headers=named, **ASKED)).status_code == 200
    assert texts_at(guarded.hook)[-2] == ["Hi there"]
    await client.close()


async def test_a_line_of_a_batch_goes_the_same_way(guarded: Guarded) -> None:
    def line(custom_id: str, content: str) -> Json:
        body = {"model": "small", "messages": [{"role": "user", "content": content}], **ASKED}
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}

    await guarded.start()
    guarded.hook.answers = lambda asked: {
        "results": [{"flagged": "bomb" in text or "Hi" not in text} for text in asked["input"]]
    }
    client = openai.AsyncOpenAI(base_url=guarded.gateway.base_url, api_key=guarded.key)
    batch = await ended(client, await start_batch(client, jsonl([line("in", "a bomb"), line("out", "Hi")])))
    found = {
        each["custom_id"]: each
        for file in (batch.output_file_id, batch.error_file_id)
        if file
        for each in await records(client, file)
    }
    await client.close()
    assert found["in"]["response"]["status_code"] == 400
    assert found["in"]["response"]["body"]["error"]["code"] == "content_filter"
    [choice] = found["out"]["response"]["body"]["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("content_filter", "")
    billed = [event for event in durable_events(guarded.gateway) if event.cost_nanousd]
    assert [event.finish_reason for event in billed] == ["content_filter"]


async def test_a_tenant_without_guardrails_is_checked_by_nobody(guarded: Guarded) -> None:
    await guarded.start()
    other = await new_tenant(guarded.gateway)
    assert (await other.ask(**ASKED)).status_code == 200
    assert guarded.hook.calls == []
