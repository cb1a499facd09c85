"""What is wrong is told at the edge, and leaves nothing behind."""

from typing import Any

import httpx
import pytest

from tests.support.gateways import Gateway, durable_events
from tests.support.workers import WorkerProcess

HI = [{"role": "user", "content": "Hi!"}]
CASES: list[tuple[Any, int, str | None, str | None]] = [
    (b"{", 400, None, "invalid_json"),
    (b"", 400, None, "invalid_json"),
    (b"\xff\xfe", 400, None, "invalid_json"),
    (b'{"model": "small", "messages": [{"role": "user", "content": "\xff"}]}', 400, None, "invalid_json"),
    ({"messages": HI}, 400, "model", None),
    ({"model": "small"}, 400, "messages", None),
    ({"model": "small", "messages": []}, 400, "messages", None),
    ({"model": "small", "messages": [{"role": "user", "content": ""}]}, 400, "messages[0].content", None),
    ({"model": "small", "messages": [{"role": "friend", "content": "Hi"}]}, 400, "messages[0].role", None),
    ({"model": "small", "messages": HI, "temperature": "hot"}, 400, "temperature", None),
    ({"model": "small", "messages": HI, "temperature": 2.5}, 400, "temperature", None),
    ({"model": "small", "messages": HI, "max_tokens": 0}, 400, "max_tokens", None),
    ({"model": "small", "messages": HI, "max_token": 5}, 400, "max_token", None),
    ({"model": "small", "messages": HI, "n": 129}, 400, "n", None),
    ({"model": "small", "messages": HI, "top_logprobs": 2}, 400, "top_logprobs", None),
    ({"model": "small", "messages": HI, "max_tokens": 2, "min_tokens": 3}, 400, "min_tokens", None),
    ({"model": "no-such", "messages": HI}, 404, "model", "model_not_found"),
    ({"model": "small", "messages": [{"role": "user", "content": "word " * 2000}]}, 400, "messages", None),
    ({"model": "small", "messages": HI, "max_tokens": 5000}, 400, "max_tokens", "context_length_exceeded"),
    (b'{"model": "' + b"a" * (9 * 2**20) + b'"}', 413, None, "body_too_large"),
]


@pytest.mark.parametrize(("sent", "status", "param", "code"), CASES, ids=range(len(CASES)))
async def test_a_mistake_is_named_and_no_worker_sees_it(
    gateway: Gateway,
    workers: list[WorkerProcess],
    key: str,
    sent: Any,
    status: int,
    param: str | None,
    code: str | None,
) -> None:
    before = sum(worker.load()["prompt_tokens_total"] for worker in workers)
    content = {"content": sent} if isinstance(sent, bytes) else {"json": sent}
    async with gateway.client(key) as client:
        reply = await client.post("/chat/completions", **content)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert code is None or error["code"] == code
    assert reply.headers["x-request-id"]
    # Whether they are ready is asked for with a token at a time.
    assert sum(worker.load()["prompt_tokens_total"] for worker in workers) - before < 5
    assert durable_events(gateway) == []


async def test_megabytes_over_the_window_are_refused_without_counting_them(gateway: Gateway, key: str) -> None:
    async with gateway.client(key) as client:
        for path, body in (
            ("/chat/completions", {"messages": [{"role": "user", "content": "1+" * 3_000_000}]}),
            ("/completions", {"prompt": "1+" * 3_000_000}),
        ):
            reply = await client.post(path, json={"model": "small", **body})
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
            assert error["message"].startswith("This model's maximum context length is 512 tokens. However, ")
            assert "at least" in error["message"]


async def test_a_key_without_the_scope_may_not_infer(gateway: Gateway) -> None:
    async with gateway.client(await gateway.make_key(scopes=("tenant-admin",))) as client:
        reply = await client.post("/chat/completions", json={"model": "small", "messages": HI})
    assert reply.status_code == 403


async def test_a_body_that_lies_about_its_length_is_still_bounded(gateway: Gateway, key: str) -> None:
    async def endless() -> Any:
        for _ in range(300):
            yield b"x" * 65536

    async with gateway.client(key) as client:
        try:
            reply = await client.post("/chat/completions", content=endless())
        except httpx.WriteError:
            return
    assert reply.status_code == 413


@pytest.mark.parametrize(
    "sent", [{"prompt": "a" * 1_000_001}, {"messages": [{"role": "user", "content": "a" * 1_000_001}]}]
)
async def test_megabytes_are_not_tokenized_for_the_asking(gateway: Gateway, key: str, sent: dict[str, object]) -> None:
    async with gateway.client(key) as client:
        reply = await client.post("/tokenize", json={"model": "small", **sent})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == next(iter(sent))
