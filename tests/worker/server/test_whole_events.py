"""A whole answer whose token ids are told while it is made: the bytes, the counts, and what a drop leaves behind."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from protocol.accounting import (
    ACCOUNTING_PREFIX,
    DONE_EVENT,
    TELL_EVERY_S,
    TOKENS_PREFIX,
    Accounting,
    parse_accounting,
    parse_tokens,
)
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.scripted import make_scripted_checkpoint, poison
from tests.worker.server.test_disconnect import LONG, grown, is_idle, wait_until
from tests.worker.server.test_tool_calls import SCRIPT, TOOL

EVENTS = {"X-Tiergate-Accounting": "events"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": 0}
TEXT = {"model": "tiny", "prompt": "The quick brown fox", "temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """Its chats end with a tool call."""
    with running_worker(make_scripted_checkpoint(tmp_path_factory.mktemp("scripted") / "m", SCRIPT)) as running:
        yield running


def read(content: bytes) -> tuple[list[int], Accounting, bytes]:
    """The told ids, the figures and the answer's bytes."""
    assert content.endswith(b"\n\n" + DONE_EVENT)
    lines = content.removesuffix(DONE_EVENT).split(b"\n")
    ids = [token_id for line in lines if line.startswith(TOKENS_PREFIX) for token_id in parse_tokens(line)[1]]
    [figures] = [line for line in lines if line.startswith(ACCOUNTING_PREFIX)]
    [answer] = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    return ids, parse_accounting(figures), answer


def without_chance(answer: bytes) -> bytes:
    """Without the second it was made in and the ids of its tool calls."""
    return re.sub(rb'"created":\d+|"id":"call_\w+"', b"", answer)


def check_is_the_plain_answer(worker: RunningWorker, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with worker.client() as client:
        plain = client.post(path, json=body, headers={"X-Request-Id": "one"})
        told = client.post(path, json=body, headers={"X-Request-Id": "one"} | EVENTS)
    assert told.headers["content-type"] == "text/event-stream"
    ids, figures, answer = read(told.content)
    assert without_chance(answer) == without_chance(plain.content)
    usage = plain.json()["usage"]
    assert len(ids) == usage["completion_tokens"] == figures.completion_tokens
    assert figures.prompt_tokens == usage["prompt_tokens"]
    assert figures.worker_id == worker.replica.worker_id
    return dict(json.loads(answer))


@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 2}, {"prompt": ["Paris", "The lazy dog"], "n": 2}, {"logprobs": 2, "echo": True}, {"stop": "e"}],
)
def test_the_data_line_is_the_plain_completion(worker: RunningWorker, fields: dict[str, Any]) -> None:
    check_is_the_plain_answer(worker, "/v1/completions", TEXT | fields)


def test_nothing_generated_is_nothing_told(worker: RunningWorker) -> None:
    body = TEXT | {"max_tokens": 0, "echo": True, "logprobs": 0}
    assert check_is_the_plain_answer(worker, "/v1/completions", body)["choices"][0]["text"] == TEXT["prompt"]


@pytest.mark.parametrize("fields", [{"tools": [TOOL]}, {"tools": [TOOL], "n": 2}, {"logprobs": True}])
def test_the_data_line_is_the_plain_chat(caller: RunningWorker, fields: dict[str, Any]) -> None:
    answer = check_is_the_plain_answer(caller, "/v1/chat/completions", CHAT | fields)
    reasons = {choice["finish_reason"] for choice in answer["choices"]}
    assert reasons == ({"tool_calls"} if "tools" in fields else {"stop"})


@pytest.mark.parametrize("max_tokens", [1, 3000])
def test_ids_are_told_now_and_then_and_the_rest_at_the_end(http: httpx.Client, max_tokens: int) -> None:
    started_at = time.monotonic()
    reply = http.post("/v1/completions", json=TEXT | {"max_tokens": max_tokens}, headers=EVENTS)
    elapsed_s = time.monotonic() - started_at
    events = reply.content.removesuffix(DONE_EVENT).split(b"\n\n")[:-1]
    # However slow the machine is, no two within the interval, and an answer of one token is one event.
    assert 1 <= len(events) <= elapsed_s / TELL_EVERY_S + 1
    assert all(re.fullmatch(rb": tokens \d+(,\d+)*", event) for event in events[:-1])
    assert len(read(reply.content)[0]) == max_tokens
    assert len(events) > 1 or max_tokens == 1, "told nothing while it was made"


def ask_raw(worker: RunningWorker, body: dict[str, Any]) -> socket.socket:
    url, content = urlsplit(worker.origin), json.dumps(body).encode()
    sock = socket.create_connection((url.hostname or "", url.port or 0), timeout=30)
    head = "POST /v1/completions HTTP/1.1\r\nhost: worker\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(content)}\r\n"
    sock.sendall(head.encode() + b"x-tiergate-accounting: events\r\n\r\n" + content)
    return sock


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"prompt": ["Hi", "Paris"]}])
def test_a_drop_in_the_middle_leaves_what_was_told_and_discards_the_rest(
    worker: RunningWorker, fields: dict[str, Any]
) -> None:
    before = worker.load()
    received = b""
    with ask_raw(worker, LONG | fields) as sock:
        while received.count(TOKENS_PREFIX) < 2:
            received += sock.recv(65_536)
        # Only this side is closed, so that everything that the worker wrote arrives.
        sock.shutdown(socket.SHUT_WR)
        while more := sock.recv(65_536):
            received += more
    assert DONE_EVENT not in received
    told = sum(len(parse_tokens(line)[1]) for line in received.split(b"\n") if line.startswith(TOKENS_PREFIX))
    wait_until(lambda: is_idle(worker))
    generated = grown(worker, before, "completion_tokens_total")
    assert 0 < told <= generated < 8000
    wait_until(lambda: grown(worker, before, "discarded_tokens_total") == generated - told)


def test_a_failure_before_the_first_byte_has_its_status(tmp_path: Path) -> None:
    folder = make_scripted_checkpoint(tmp_path / "m", ["Good", " so far", " bad", " x"])
    poison(folder, " bad")
    with running_worker(folder) as worker, worker.client() as client:
        before = worker.load()
        ids = client.post("/tokenize", json={"prompt": " bad"}).json()["tokens"]
        broken = client.post("/v1/completions", json=TEXT | {"prompt": ids}, headers=EVENTS)
        assert (broken.status_code, broken.json()["error"]["code"]) == (500, "step_failed")
        refused = client.post("/v1/completions", json=TEXT | {"model": "nobody"}, headers=EVENTS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        # What came before the failure is told to nobody, unless its first event was due already.
        partly = client.post("/v1/chat/completions", json=CHAT, headers=EVENTS)
        told = partly.text.count(",") + 1 if partly.text.startswith(": tokens ") else 0
        assert partly.status_code == (200 if told else 500)
        generated = grown(worker, before, "completion_tokens_total")
        assert generated == 3
        assert told or grown(worker, before, "discarded_tokens_total") == generated


def test_a_later_failure_is_an_error_event_and_no_done(checkpoint: Path) -> None:
    with (
        running_worker(checkpoint, drain_grace_s=0.1) as worker,
        worker.client() as client,
        client.stream("POST", "/v1/completions", json=LONG, headers=EVENTS) as reply,
    ):
        lines = reply.iter_lines()
        assert next(lines).startswith(": tokens ")
        # The end of the worker gives it up.
        worker.stop.set()
        rest = [line for line in lines if line]
    assert rest[-1].startswith('data: {"error":{')
    assert all(line.startswith(": tokens ") for line in rest[:-1])


def test_a_whole_answer_that_waits_is_told_its_place(checkpoint: Path) -> None:
    with (
        running_worker(checkpoint, max_num_seqs=1) as worker,
        worker.client() as client,
        client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as running,
    ):
        # Kept, since an iterator that is let go closes its stream.
        lines = running.iter_lines()
        assert next(lines).startswith("data: ")
        with client.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 1}, headers=EVENTS) as waiting:
            assert next(waiting.iter_lines()) == ": waiting position=1"


def test_streams_and_embeddings_are_accounted_for_as_ever(http: httpx.Client) -> None:
    for value in ("1", "events"):
        headers = {"X-Tiergate-Accounting": value}
        stream = http.post("/v1/completions", json=TEXT | {"stream": True}, headers=headers).content
        assert stream.count(b"data: {") > 1
        assert sum(len(parse_tokens(line)[1]) for line in stream.split(b"\n") if line.startswith(TOKENS_PREFIX)) == 12
        embedded = http.post("/v1/embeddings", json={"model": "tiny", "input": "Hi"}, headers=headers)
        assert embedded.headers["content-type"] == "application/json"
        assert json.loads(embedded.headers["x-tiergate-accounting"])["completion_tokens"] == 0
