"""Members that answer what no server should: another member answers, or the error is told in our words."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from protocol.accounting import DONE_EVENT
from tests.gateway.inference.test_foreign import BODY, END, FIGURES, TEXT, USAGE, ask, gateway_before, whole
from tests.support.gateways import durable_events
from tests.support.members import Handler, stream_of
from tests.support.valkey import ValkeyProcess

NESTED = b"[" * 5_000 + b"]" * 5_000
WHOLE = json.dumps({"id": "x", "choices": [{"index": 0, "message": {"content": "Hello"}}], "usage": USAGE}).encode()
NOT_UTF8 = b"\xff\xfe"


def answering(body: bytes, *, status: int = 200, **headers: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(
            body=body, status=status, reason="Odd", headers={"Content-Type": "application/json", **headers}
        )

    return answer


@pytest.mark.parametrize(
    "strange",
    [
        answering(b'{"choices": [{"message": %b}]}' % NESTED),
        answering(b'{"choices": [], "usage": %b}' % NESTED),
        answering(WHOLE.replace(b"Hello", NOT_UTF8)),
        stream_of(TEXT, END, FIGURES, DONE_EVENT),
        answering(WHOLE, status=501),
        answering(WHOLE, status=600),
        answering(WHOLE, status=999),
        answering(b'{"error": {"type": "x", "message": "%b"}}' % NOT_UTF8),
    ],
    ids=["nested", "nested usage", "not UTF-8", "a stream unasked", "501", "600", "999", "an error not UTF-8"],
)
async def test_another_member_answers(tmp_path: Path, valkey: ValkeyProcess, strange: Handler) -> None:
    num_asked: list[int] = []

    async def counted(request: web.Request) -> web.StreamResponse:
        num_asked.append(1)
        return await strange(request)

    async with gateway_before(tmp_path, valkey, counted, whole(usage=USAGE)) as gateway:
        for _ in range(20):
            # Which member is asked first depends on the request's id.
            assert json.loads(await ask(gateway))["choices"][0]["message"]["content"] == "Hello"
            if num_asked:
                break
        last = durable_events(gateway)[-1]
    assert num_asked and (last.num_attempts, last.status, last.completion_tokens) == (2, "ok", 5)


async def test_bytes_that_are_no_text_pass_through_a_stream(tmp_path: Path, valkey: ValkeyProcess) -> None:
    strange = TEXT.replace(b"Hello", NOT_UTF8) + b'data: {"choices": %b}\n\n' % NESTED
    async with gateway_before(tmp_path, valkey, stream_of(TEXT, strange, END, FIGURES, DONE_EVENT)) as gateway:
        seen = await ask(gateway, stream=True)
        [billed] = durable_events(gateway)
    assert NOT_UTF8 in seen and seen.endswith(DONE_EVENT)
    assert (billed.status, billed.prompt_tokens, billed.completion_tokens) == ("ok", 7, 5)


async def test_a_refusal_that_is_no_text_is_told_in_our_words(tmp_path: Path, valkey: ValkeyProcess) -> None:
    body = b'{"error": {"message": "%b", "type": "invalid_request_error", "param": null, "code": null}}' % NOT_UTF8
    async with (
        gateway_before(tmp_path, valkey, answering(body, status=400)) as gateway,
        gateway.client(await gateway.make_key()) as client,
    ):
        reply = await client.post("/chat/completions", json=BODY)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "the model's server refused the request with status 400"


async def test_nobody_is_told_to_come_back_in_a_thousand_years(tmp_path: Path, valkey: ValkeyProcess) -> None:
    busy = answering(b"{}", status=503, **{"Retry-After": "9" * 400})
    async with (
        gateway_before(tmp_path, valkey, busy) as gateway,
        gateway.client(await gateway.make_key()) as client,
    ):
        reply = await client.post("/chat/completions", json=BODY)
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "3600")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_figures_beyond_the_context_window_are_not_billed(
    tmp_path: Path, valkey: ValkeyProcess, is_stream: bool
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2**53}
    figures = b'data: {"choices": [], "usage": %b}\n\n' % json.dumps(usage).encode()
    member = stream_of(TEXT, END, figures, DONE_EVENT) if is_stream else whole(usage=usage)
    async with gateway_before(tmp_path, valkey, member) as gateway:
        await ask(gateway, stream=is_stream)
        [billed] = durable_events(gateway)
    # What came is counted: one event, or five bytes.
    assert (billed.prompt_tokens, billed.completion_tokens) == (7, 1 if is_stream else 2)


@pytest.mark.parametrize("page", [b'{"data": [{"id": "%b"}]}' % NOT_UTF8, b'{"x": %b, "data": []}' % NESTED])
async def test_a_strange_list_of_models_ends_nothing(tmp_path: Path, valkey: ValkeyProcess, page: bytes) -> None:
    looked = asyncio.Event()

    async def models(_request: web.Request) -> web.StreamResponse:
        looked.set()
        return web.Response(body=page, content_type="application/json")

    async with gateway_before(tmp_path, valkey, whole(usage=USAGE), models=models) as gateway:
        looked.clear()
        async with asyncio.timeout(30):
            await looked.wait()
        assert b"Hello" in await ask(gateway)
