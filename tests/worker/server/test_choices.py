"""Several answers to a request, as the official client sees them."""

import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.running_worker import RunningWorker, running_worker
from tests.worker.server.test_disconnect import is_idle, wait_until

FOX = "The quick brown fox jumps over the lazy dog. " * 4
SEEDED: dict[str, Any] = {"temperature": 2, "seed": 7, "max_tokens": 12}


def ask(client: openai.OpenAI, **fields: Any) -> tuple[list[str], openai.types.CompletionUsage]:
    made = client.completions.create(model="tiny", **({"prompt": FOX} | SEEDED | fields))
    assert [choice.index for choice in made.choices] == list(range(len(made.choices)))
    assert made.usage is not None
    return [choice.text for choice in made.choices], made.usage


def test_seeded_choices_repeat_and_differ_and_the_first_is_the_only_one_of_n_1(client: openai.OpenAI) -> None:
    texts, usage = ask(client, n=4, extra_body={"ignore_eos": True})
    assert len(set(texts)) == 4
    assert ask(client, n=4, extra_body={"ignore_eos": True})[0] == texts
    [alone], usage_alone = ask(client, extra_body={"ignore_eos": True})
    assert alone == texts[0]
    assert (usage.prompt_tokens, usage.completion_tokens) == (usage_alone.prompt_tokens, 4 * 12)


def test_each_choice_of_a_chat_is_streamed_as_it_is_answered_whole(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "n": 3} | SEEDED
    whole = client.chat.completions.create(**fields)
    stream = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    texts, ends, usage = ["", "", ""], {}, None
    for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            assert choice.index not in ends
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_a_stop_string_ends_each_choice_by_itself(client: openai.OpenAI) -> None:
    free, _ = ask(client, n=8, max_tokens=60, extra_body={"ignore_eos": True})
    stopped, usage = ask(client, n=8, max_tokens=60, stop=["e", "9"], extra_body={"ignore_eos": True})

    def cut(text: str) -> str:
        return text[: min((i for i in (text.find("e"), text.find("9")) if i >= 0), default=len(text))]

    assert stopped == [cut(text) for text in free]
    assert len({len(text) for text in stopped}) > 1
    assert usage.completion_tokens < 8 * 60


def test_the_prompt_is_computed_once_for_all_choices(client: openai.OpenAI, worker: RunningWorker) -> None:
    prompt = [(7 * i) % 380 + 3 for i in range(400)]
    before = worker.replica.engine.report()
    _, usage = ask(client, prompt=prompt, n=5)
    after = worker.replica.engine.report()
    assert usage.prompt_tokens == 400
    assert usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens == 0
    assert after.cached_tokens_total - before.cached_tokens_total == 4 * (399 // 16 * 16)


def test_several_prompts_are_answered_as_each_alone(client: openai.OpenAI) -> None:
    prompts = ["Paris", "The lazy dog", "emoji"]
    together, usage = ask(client, prompt=prompts, n=2)
    alone = [ask(client, prompt=prompt, n=2) for prompt in prompts]
    assert together == [text for texts, _ in alone for text in texts]
    assert usage.prompt_tokens == sum(each.prompt_tokens for _, each in alone)
    assert usage.completion_tokens == sum(each.completion_tokens for _, each in alone)
    ids = [[5, 17, 99], [200, 42]]
    assert ask(client, prompt=ids)[0] == [ask(client, prompt=each)[0][0] for each in ids]


def test_leaving_ends_all_choices(worker: RunningWorker, http: httpx.Client) -> None:
    long = {"model": "tiny", "prompt": "Hi", "max_tokens": 8000, "ignore_eos": True, "n": 4, "stream": True}
    with http.stream("POST", "/v1/completions", json=long) as reply:
        lines = reply.iter_lines()
        for _ in range(20):
            next(lines)
        assert worker.load()["num_running"] == 4
    wait_until(lambda: is_idle(worker))
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/completions", json=long | {"stream": False}, timeout=0.5)
    wait_until(lambda: is_idle(worker))


def test_choices_are_queued_or_refused_as_a_whole(checkpoint: Path) -> None:
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 8000, "ignore_eos": True}
    with running_worker(checkpoint, max_num_seqs=1, max_waiting=3) as worker, worker.client() as client:
        refused = client.post("/v1/completions", json=body | {"n": 5})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as running:
            # Kept, since an iterator that is let go closes its stream.
            lines = running.iter_lines()
            next(lines)
            full = client.post("/v1/completions", json=body | {"n": 4})
            assert (full.status_code, full.json()["error"]["code"]) == (503, "saturated")
            assert worker.load()["num_waiting"] == 0
            with client.stream("POST", "/v1/completions", json=body | {"n": 3, "stream": True}) as waiting:
                notices = waiting.iter_lines()
                assert next(notices) == ": waiting position=1"
                assert worker.load()["num_waiting"] == 3
        wait_until(lambda: is_idle(worker))


def test_choices_that_end_at_their_first_token_hold_nobody(client: openai.OpenAI) -> None:
    started_at = time.monotonic()
    texts, usage = ask(client, n=3, max_tokens=1)
    assert len(texts) == usage.completion_tokens == 3
    assert time.monotonic() - started_at < 20
