"""What the bytes of a stream say: characters, stop strings, accounting, notices while waiting."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.accounting import ACCOUNTING_PREFIX, TOKENS_PREFIX, parse_accounting, parse_tokens
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.scripted import make_scripted_checkpoint

SCRIPT = ["Hello", " wor", "ld 👍🏽", " ST", "O", "P now", " é", "日本", "!"]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": 0, "stream": True}
ACCOUNTED = {"X-Tiergate-Accounting": "1"}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    # Characters stay single, so that the tokenizer splits them into bytes.
    script = [*SCRIPT, "ц", "ж"]
    folder = make_scripted_checkpoint(tmp_path_factory.mktemp("scripted") / "m", script)
    with running_worker(folder) as running:
        yield running


def stream(worker: RunningWorker, **fields: Any) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The data payloads and the comment lines; the stream must end with `[DONE]`."""
    with worker.client() as client:
        reply = client.post("/v1/chat/completions", json=CHAT | fields, headers=ACCOUNTED)
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = reply.content.split(b"\n")
    payloads = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    assert payloads[-1] == b"[DONE]"
    return [json.loads(payload) for payload in payloads[:-1]], [line for line in lines if line.startswith(b":")]


def texts(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]]


def token_ids(comments: list[bytes]) -> list[int]:
    return [token_id for line in comments if line.startswith(TOKENS_PREFIX) for token_id in parse_tokens(line)[1]]


def test_no_chunk_ends_inside_a_character(scripted: RunningWorker) -> None:
    chunks, comments = stream(scripted)
    pieces = texts(chunks)
    assert "".join(pieces) == "".join(SCRIPT) + "цж"
    assert "\ufffd" not in "".join(pieces)
    assert len(token_ids(comments)) > len([piece for piece in pieces if piece]), "no token was part of a character"


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("STOP", "Hello world 👍🏽 "),
        (["STOP now", "zz"], "Hello world 👍🏽 "),
        ("TOPICS", "".join(SCRIPT) + "цж"),
        ("👍", "Hello world "),
        ("H", ""),
        ("ж", "".join(SCRIPT) + "ц"),
    ],
)
def test_a_stop_string_split_over_tokens_ends_the_answer_before_it(
    scripted: RunningWorker, stop: object, expected: str
) -> None:
    chunks, _ = stream(scripted, stop=stop)
    assert "".join(texts(chunks)) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_counts_only_after_min_tokens(scripted: RunningWorker) -> None:
    chunks, _ = stream(scripted, stop=["Hello", "now"], min_tokens=1)
    assert "".join(texts(chunks)) == "Hello world 👍🏽 STOP "


def test_what_comes_after_a_stop_string_is_counted_as_discarded(scripted: RunningWorker) -> None:
    before = scripted.load()
    chunks, _ = stream(scripted, stop="Hello", stream_options={"include_usage": True})
    after = scripted.load()
    generated = after["completion_tokens_total"] - before["completion_tokens_total"]
    discarded = after["discarded_tokens_total"] - before["discarded_tokens_total"]
    assert generated == chunks[-1]["usage"]["completion_tokens"] + discarded


@pytest.mark.parametrize("fields", [{}, {"stop": "STOP"}, {"max_tokens": 3}, {"max_tokens": 12, "ignore_eos": True}])
def test_the_ids_in_comments_add_up_to_the_usage(scripted: RunningWorker, fields: dict[str, Any]) -> None:
    chunks, comments = stream(scripted, stream_options={"include_usage": True}, **fields)
    usage = chunks[-1]["usage"]
    assert len(token_ids(comments)) == usage["completion_tokens"] > 0
    final = parse_accounting(next(line for line in comments if line.startswith(ACCOUNTING_PREFIX)))
    assert final.completion_tokens == usage["completion_tokens"]
    assert final.prompt_tokens == usage["prompt_tokens"]
    assert final.worker_id == scripted.replica.worker_id
    assert final.finish_reason == chunks[-2]["choices"][0]["finish_reason"]
    assert final.compute_ms > 0


def test_a_whole_answer_carries_the_figures_in_a_header(scripted: RunningWorker) -> None:
    with scripted.client() as client:
        reply = client.post("/v1/chat/completions", json=CHAT | {"stream": False}, headers=ACCOUNTED)
        plain = client.post("/v1/chat/completions", json=CHAT | {"stream": False})
    figures = json.loads(reply.headers["x-tiergate-accounting"])
    assert figures["completion_tokens"] == reply.json()["usage"]["completion_tokens"]
    assert "x-tiergate-accounting" not in plain.headers


def test_a_client_that_did_not_ask_sees_no_comments(scripted: RunningWorker) -> None:
    with scripted.client() as client:
        reply = client.post("/v1/chat/completions", json=CHAT)
    assert b"\n:" not in reply.content
    assert not reply.content.startswith(b":")


def test_a_waiting_stream_is_told_its_place(checkpoint: Path) -> None:
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with (
        running_worker(checkpoint, max_num_seqs=1) as worker,
        worker.client() as client,
        client.stream("POST", "/v1/completions", json=body) as running,
    ):
        # Kept, since an iterator that is let go closes its stream.
        lines = running.iter_lines()
        assert next(lines).startswith("data: ")
        with client.stream("POST", "/v1/completions", json=body | {"max_tokens": 1}) as waiting:
            assert next(waiting.iter_lines()) == ": waiting position=1"
