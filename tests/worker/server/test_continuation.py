"""An answer that one replica began and another one ends is the answer that one replica would have given."""

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.accounting import (
    ACCOUNTING_PREFIX,
    DONE_EVENT,
    TOKENS_PREFIX,
    Accounting,
    parse_accounting,
    parse_tokens,
)
from tests.support.gateways import WORKER_KEY
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.scripted import make_scripted_checkpoint
from tests.worker.server.test_tool_calls import SCRIPT, TOOL
from tests.worker.server.test_whole_events import read

REQUEST_ID = "01900000-0000-7000-8000-000000000001"
TEXT = {"model": "tiny", "prompt": "The quick brown fox", "temperature": 0, "max_tokens": 14, "ignore_eos": True}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": 0}
TEXTS = [
    {},
    {"temperature": 1.0, "seed": 7, "n": 2},
    {"prompt": ["Paris", "The lazy dog"], "n": 2, "temperature": 1.5, "seed": -3, "echo": True},
    {"stop": ["e", "qu"], "min_tokens": 3, "temperature": 2.0, "seed": 11},
    {
        "presence_penalty": 1.5,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.3,
        "min_tokens": 6,
    },
    {"temperature": 1.8, "seed": 4, "ignore_eos": False},
    {"logprobs": 2, "temperature": 1.7, "seed": 5},
    {"logprobs": 1, "echo": True, "n": 2, "temperature": 1.2, "seed": 5},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"return_token_ids": True, "bad_words": ["the", "e"], "temperature": 1.5, "seed": 8, "n": 2},
    {"return_token_ids": True, "stop": ["e", "qu"], "include_stop_str_in_output": True, "temperature": 1.5, "seed": 8},
    {"allowed_token_ids": [60, 70, 80], "logprobs": 1, "logprob_token_ids": [5, 6], "temperature": 1.0, "seed": 8},
]
CHATS = [
    {"tools": [TOOL]},
    {"tools": [TOOL], "n": 2, "logprobs": True},
    {"stream_options": {"include_usage": True}},
    {"skip_special_tokens": False, "include_stop_str_in_output": True, "return_token_ids": True, "logprobs": True},
    {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "So: "}],
        "continue_final_message": True,
        "echo": True,
        "max_tokens": 6,
        "temperature": 1.0,
        "seed": 4,
        "return_token_ids": True,
    },
]


PROMPT_SCORES = {"prompt_logprobs": 2, "logprobs": 3, "logprob_token_ids": [5, 6], "n": 2, "return_token_ids": True}


@pytest.fixture(scope="module")
def keyed(checkpoint: Path) -> Iterator[RunningWorker]:
    with running_worker(checkpoint, api_key=WORKER_KEY) as running:
        yield running


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """Its chats end with a tool call."""
    folder = make_scripted_checkpoint(tmp_path_factory.mktemp("scripted") / "m", SCRIPT)
    with running_worker(folder, api_key=WORKER_KEY) as running:
        yield running


def ask(worker: RunningWorker, body: dict[str, Any], *, accounting: str = "1") -> httpx.Response:
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    headers = {"X-Request-Id": REQUEST_ID, "X-Tiergate-Accounting": accounting}
    with worker.client() as client:
        return client.post(path, json=body, headers=headers)


def cuts(content: bytes, num_choices: int) -> Iterator[tuple[list[dict[str, Any]], list[list[int]]]]:
    """For each place where a stream may break: what a reader may pass on, and the ids that this is made of."""
    passed_on: list[dict[str, Any]] = []
    held: list[dict[str, Any]] = []
    told: list[list[int]] = [[] for _ in range(num_choices)]
    for event in content.removesuffix(DONE_EVENT).split(b"\n\n"):
        yield list(passed_on), [list(ids) for ids in told]
        for line in event.split(b"\n"):
            if line.startswith(b"data: "):
                held.append(json.loads(line[6:]))
        for line in event.split(b"\n"):
            if line.startswith(TOKENS_PREFIX):
                index, ids = parse_tokens(line)
                told[index] += ids
                passed_on += held
                held = []


def data(content: bytes) -> list[dict[str, Any]]:
    lines = content.removesuffix(DONE_EVENT).split(b"\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]


def figures(content: bytes) -> Accounting:
    [line] = [line for line in content.split(b"\n") if line.startswith(ACCOUNTING_PREFIX)]
    return parse_accounting(line)


def joined(chunks: list[dict[str, Any]], num_choices: int) -> dict[str, Any]:
    """What a client makes of a stream, whatever its chunks are."""
    choices: list[dict[str, Any]] = [
        {"text": "", "roles": 0, "calls": {}, "logprobs": [], "ends": [], "ids": [], "prompts": []}
        for _ in range(num_choices)
    ]
    for chunk in chunks:
        for choice in chunk["choices"]:
            into, delta = choices[choice["index"]], choice.get("delta", {})
            into["text"] += choice.get("text") or delta.get("content") or ""
            into["roles"] += "role" in delta
            into["ids"] += choice.get("token_ids", [])
            into["prompts"] += [each["prompt_token_ids"] for each in (choice, chunk) if "prompt_token_ids" in each]
            for call in delta.get("tool_calls") or []:
                called = into["calls"].setdefault(call["index"], {"name": "", "arguments": "", "ids": 0})
                called["name"] += call["function"].get("name") or ""
                called["arguments"] += call["function"].get("arguments") or ""
                called["ids"] += "id" in call
            scored = choice.get("logprobs") or {}
            into["logprobs"] += scored.get("content") or list(
                zip_longest(*(scored.get(name, ()) for name in ("tokens", "token_logprobs", "text_offset")))
            )
            into["ends"] += [choice["finish_reason"]] * bool(choice["finish_reason"])
    return {
        "choices": choices,
        "usage": [chunk["usage"] for chunk in chunks if chunk.get("usage") and not chunk["choices"]],
        "heads": {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks},
    }


def same_logprobs(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(_near(a, b) for a, b in zip(one, other, strict=True))


def _near(a: Any, b: Any) -> bool:
    if isinstance(a, float):
        return bool(a == pytest.approx(b, abs=1e-3))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_near(a[name], b[name]) for name in a if name != "top_logprobs")
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_near, a, b))
    return bool(a == b)


def check_every_cut(worker: RunningWorker, body: dict[str, Any]) -> None:
    prompts = body["prompt"] if isinstance(body.get("prompt"), list) else [""]
    num_choices = len(prompts) * body.get("n", 1)
    content = ask(worker, body | {"stream": True}).content
    whole = joined(data(content), num_choices)
    seen = 0
    for passed_on, told in cuts(content, num_choices):
        if not any(told):
            continue
        seen += 1
        rest = ask(worker, body | {"stream": True, "continue_from": told})
        assert rest.status_code == 200, rest.text
        both = joined(passed_on + data(rest.content), num_choices)
        for choice, expected in zip(both["choices"], whole["choices"], strict=True):
            assert same_logprobs(choice.pop("logprobs"), expected["logprobs"])
            assert choice == {name: value for name, value in expected.items() if name != "logprobs"}
        assert [usage["completion_tokens"] for usage in both["usage"]] == [
            usage["completion_tokens"] for usage in whole["usage"]
        ]
        assert both["heads"] == whole["heads"]
        ended, expected_end = figures(rest.content), figures(content)
        assert ended.completion_tokens == expected_end.completion_tokens
        assert (ended.prompt_tokens, ended.finish_reason) == (expected_end.prompt_tokens, expected_end.finish_reason)
        newly_told = [line for line in rest.content.split(b"\n") if line.startswith(TOKENS_PREFIX)]
        num_new = sum(len(parse_tokens(line)[1]) for line in newly_told)
        assert num_new + sum(map(len, told)) == ended.completion_tokens
    assert seen, "outputs that pile up on a busy machine come merged"


@pytest.mark.parametrize("fields", TEXTS, ids=str)
def test_a_text_cut_anywhere_goes_on_as_if_nothing_had_happened(keyed: RunningWorker, fields: dict[str, Any]) -> None:
    check_every_cut(keyed, TEXT | fields)


@pytest.mark.parametrize("fields", CHATS, ids=str)
def test_a_chat_cut_anywhere_goes_on_with_its_calls(caller: RunningWorker, fields: dict[str, Any]) -> None:
    check_every_cut(caller, CHAT | fields)


@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 2, "temperature": 1.0, "seed": 3}, {"logprobs": 2, "echo": True}, {"stop": "e"}, PROMPT_SCORES],
    ids=str,
)
def test_a_whole_answer_is_whole_after_any_number_of_ids(keyed: RunningWorker, fields: dict[str, Any]) -> None:
    body = TEXT | fields
    plain = ask(keyed, body, accounting="events").content
    _, expected_figures, expected = read(plain)
    told: list[list[int]] = [[] for _ in range(body.get("n", 1))]
    for line in plain.split(b"\n"):
        if line.startswith(TOKENS_PREFIX):
            index, ids = parse_tokens(line)
            told[index] += ids
    for num_told in (1, 2, len(told[0]) - 1, len(told[0])):
        begun = [ids[:num_told] for ids in told]
        ids, ended, answer = read(ask(keyed, body | {"continue_from": begun}, accounting="events").content)
        one, other = json.loads(answer), json.loads(expected)
        # The second run finds blocks of the first in the cache.
        assert one.pop("usage")["total_tokens"] == other.pop("usage")["total_tokens"]
        assert _near(one, other)
        assert len(ids) + sum(map(len, begun)) == ended.completion_tokens == expected_figures.completion_tokens


def test_only_who_has_the_worker_key_may_continue(worker: RunningWorker) -> None:
    reply = ask(worker, TEXT | {"continue_from": [[1]]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "continue_from")


@pytest.mark.parametrize("given", [[], [[1], [2]], [[10**6]], [[1] * 15], [[-1]], [1]], ids=str)
def test_what_cannot_be_continued_is_refused_by_name(keyed: RunningWorker, given: Any) -> None:
    reply = ask(keyed, TEXT | {"continue_from": given})
    assert reply.status_code == 400
    assert re.match(r"continue_from", reply.json()["error"]["param"])
