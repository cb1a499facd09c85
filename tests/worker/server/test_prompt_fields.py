"""Fields that shape a chat's prompt: what it is made of, where it ends, and how much of it is kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.checkpoints import CHAT_TEMPLATE, make_tiny_checkpoint
from tests.support.running_worker import RunningWorker, running_worker

OPEN: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The quick brown"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
CONTINUED = {"messages": OPEN, "continue_final_message": True}


def chat(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    reply = http.post("/v1/chat/completions", json=GREEDY | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


def streamed(http: httpx.Client, **fields: Any) -> str:
    import json

    text = http.post("/v1/chat/completions", json=GREEDY | fields | {"stream": True}).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def ids_of(http: httpx.Client, **fields: Any) -> list[int]:
    return http.post("/tokenize", json=fields).raise_for_status().json()["tokens"]  # type: ignore[no-any-return]


def after(http: httpx.Client, ids: list[int], **fields: Any) -> str:
    """What comes after these very ids."""
    reply = http.post("/v1/completions", json=GREEDY | {"prompt": ids} | fields).raise_for_status().json()
    return reply["choices"][0]["text"]  # type: ignore[no-any-return]


def test_an_answer_goes_on_from_the_last_message(http: httpx.Client) -> None:
    ids = ids_of(http, **CONTINUED)
    assert ids == ids_of(http, messages=OPEN, add_generation_prompt=False)[: len(ids)]
    answer = chat(http, **CONTINUED)
    assert answer["usage"]["prompt_tokens"] == len(ids)
    text = answer["choices"][0]["message"]["content"]
    assert text == after(http, ids) == streamed(http, **CONTINUED)
    for fields in ({"add_generation_prompt": False}, {"n": 2}, {"logprobs": True}):
        assert chat(http, **CONTINUED, **fields)["choices"][-1]["message"]["content"] == text
    assert chat(http, messages=OPEN)["choices"][0]["message"]["content"] != text


def test_an_echo_begins_with_the_message_that_is_continued(http: httpx.Client) -> None:
    plain = chat(http, **CONTINUED, logprobs=True)
    for fields in ({}, {"logprobs": True}, {"tools": [{"type": "function", "function": {"name": "f"}}]}):
        echoed = chat(http, **CONTINUED, **fields, echo=True)
        whole = OPEN[1]["content"] + chat(http, **CONTINUED, **fields)["choices"][0]["message"]["content"]
        assert echoed["choices"][0]["message"]["content"] == whole
        assert streamed(http, **CONTINUED, **fields, echo=True) == whole
        assert echoed["usage"]["completion_tokens"] == 12
    logprobs = chat(http, **CONTINUED, logprobs=True, echo=True)["choices"][0]["logprobs"]
    assert logprobs == plain["choices"][0]["logprobs"]
    # A user's message is not of the answer's role.
    assert not chat(http, messages=OPEN[:1], echo=True)["choices"][0]["message"]["content"].startswith("Hi")


def test_without_the_mark_that_opens_an_answer(http: httpx.Client) -> None:
    with_mark, without = (ids_of(http, messages=OPEN[:1], add_generation_prompt=each) for each in (True, False))
    assert with_mark[: len(without)] == without and len(with_mark) > len(without)
    answer = chat(http, messages=OPEN[:1], add_generation_prompt=False)
    assert answer["usage"]["prompt_tokens"] == len(without)
    assert answer["choices"][0]["message"]["content"] == after(http, without)


@pytest.mark.parametrize("kept", [1, 5, 17, 1000])
def test_only_the_end_of_a_prompt_is_kept(http: httpx.Client, kept: int) -> None:
    messages = [{"role": "user", "content": "The lazy dog jumps over 日本語. " * 3}]
    ids = ids_of(http, messages=messages)
    answer = chat(http, messages=messages, truncate_prompt_tokens=kept)
    assert answer["usage"]["prompt_tokens"] == min(kept, len(ids))
    assert answer["choices"][0]["message"]["content"] == after(http, ids[-kept:])
    assert after(http, ids, truncate_prompt_tokens=kept) == after(http, ids[-kept:])
    echoed = http.post("/v1/completions", json=GREEDY | {"prompt": ids, "truncate_prompt_tokens": kept, "echo": True})
    whole = http.post("/v1/completions", json=GREEDY | {"prompt": ids[-kept:], "echo": True})
    assert echoed.json()["choices"] == whole.json()["choices"]


def test_as_much_is_kept_as_leaves_room_for_the_answer(http: httpx.Client) -> None:
    prompt = "x " * 20_000
    refused = http.post("/v1/completions", json=GREEDY | {"prompt": prompt})
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    for fields, expected in (({}, 8180), ({"max_tokens": 92}, 8100), ({"max_tokens": 0, "echo": True}, 8192)):
        body = GREEDY | {"prompt": prompt, "truncate_prompt_tokens": -1} | fields
        reply = http.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["prompt_tokens"] == expected
    # Reading it all would take long for what is thrown away.
    endless = http.post("/v1/completions", json=GREEDY | {"prompt": "x" * 4_000_000, "truncate_prompt_tokens": 1})
    assert endless.json()["error"]["code"] == "context_length_exceeded"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """A model whose template reads arguments, and whose tokenizer begins a text with a token of its own."""
    folder: Path = make_tiny_checkpoint(tmp_path_factory.mktemp("told") / "m")
    template = CHAT_TEMPLATE + "{% if enable_thinking is false %}<think>\n\n</think>{% endif %}{{ persona }}"
    (folder / "chat_template.jinja").write_text(template)
    _add_beginning(folder / "tokenizer.json")
    with running_worker(folder) as running:
        yield running


def _add_beginning(path: Path) -> None:
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save(str(path))


def test_the_template_is_told_what_the_request_says(told: RunningWorker) -> None:
    with told.client() as http:
        plain = ids_of(http, messages=OPEN[:1])
        for arguments, text in (
            ({"enable_thinking": False}, "<think>\n\n</think>"),
            ({"enable_thinking": True}, ""),
            ({"persona": "<|im_end|>\n<|im_start|>system"}, "<|im_end|>\n<|im_start|>system"),
            ({"nobody": {"reads": ["this"]}}, ""),
        ):
            ids = ids_of(http, messages=OPEN[:1], chat_template_kwargs=arguments)
            assert ids == plain + ids_of(http, prompt=text, add_special_tokens=False)
            answer = chat(http, messages=OPEN[:1], chat_template_kwargs=arguments)
            assert answer["usage"]["prompt_tokens"] == len(ids)
            assert answer["choices"][0]["message"]["content"] == after(http, ids)


def test_the_tokenizers_own_special_tokens_are_a_choice(told: RunningWorker) -> None:
    with told.client() as http:
        assert ids_of(http, prompt="Hi") == [0, *ids_of(http, prompt="Hi", add_special_tokens=False)]
        assert ids_of(http, messages=OPEN, add_special_tokens=True) == [0, *ids_of(http, messages=OPEN)]
        for adds in (True, False, None):
            ids = ids_of(http, prompt="Hi<|im_end|>", **({} if adds is None else {"add_special_tokens": adds}))
            body = GREEDY | {"prompt": "Hi<|im_end|>", "add_special_tokens": adds}
            reply = http.post("/v1/completions", json=body).raise_for_status().json()
            assert reply["usage"]["prompt_tokens"] == len(ids)
            assert ids.count(2) == 0
        count = chat(http, messages=OPEN, add_special_tokens=True)["usage"]["prompt_tokens"]
        assert count == 1 + len(ids_of(http, messages=OPEN))


def test_tokens_are_spelled_as_in_the_vocabulary(http: httpx.Client) -> None:
    reply = http.post("/tokenize", json={"prompt": "The quick", "return_token_strs": True}).json()
    assert "".join(reply["token_strs"]) == "TheĠquick" and len(reply["token_strs"]) == reply["count"]
    marks = http.post("/tokenize", json={"messages": OPEN, "return_token_strs": True}).json()["token_strs"]
    assert marks[0] == "<|im_start|>"
    assert http.post("/tokenize", json={"prompt": "The quick"}).json()["token_strs"] is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (CONTINUED | {"add_generation_prompt": True}, "continue_final_message"),
        (CONTINUED | {"messages": OPEN[:1]}, "continue_final_message"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"__class__.x": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"a{i}": 1 for i in range(65)}}, "chat_template_kwargs"),
        ({"add_special_tokens": 0}, "add_special_tokens"),
    ],
)
def test_what_does_not_fit_is_named(http: httpx.Client, path: str, fields: dict[str, Any], param: str) -> None:
    reply = http.post(path, json={"model": "tiny", "messages": OPEN} | fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize("kept", [0, -2, 1.5, "1", True])
def test_how_much_is_kept_is_a_number_in_its_range(http: httpx.Client, kept: object) -> None:
    reply = http.post("/v1/completions", json=GREEDY | {"prompt": "Hi", "truncate_prompt_tokens": kept})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "truncate_prompt_tokens")
