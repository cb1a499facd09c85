"""Fields of vLLM's that shape what an answer may be made of, and what is told of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.support.running_worker import RunningWorker, running_worker
from tests.support.scripted import make_scripted_checkpoint
from tests.worker.server.test_logprobs import reference

PROMPT = [5, 17, 99, 200, 42, 7]
TEXT: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
IDS = {"return_token_ids": True}
SCRIPT = ["Hello", " world", " STOP", " it"]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    folder = make_scripted_checkpoint(tmp_path_factory.mktemp("scripted") / "m", SCRIPT)
    with running_worker(folder) as running:
        yield running


def ask(http: httpx.Client, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    reply = http.post(path, json=body | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


def chunks(http: httpx.Client, body: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    reply = http.post(path, json=body | fields | {"stream": True})
    assert reply.status_code == 200, reply.text
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]


def ids_of(http: httpx.Client, body: dict[str, Any], **fields: Any) -> list[list[int]]:
    """Of each choice, whole and streamed alike."""
    whole = [choice["token_ids"] for choice in ask(http, body, **IDS, **fields)["choices"]]
    streamed: list[list[int]] = [[] for _ in whole]
    for chunk in chunks(http, body, **IDS, **fields):
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["token_ids"]
    assert streamed == whole
    return whole


def test_only_what_is_allowed_is_chosen(http: httpx.Client) -> None:
    allowed = [60, 70, 80, 90, 70]
    for fields in ({}, {"temperature": 2.0, "seed": 1}, {"n": 3, "temperature": 2.0, "seed": 5}):
        found = ids_of(http, TEXT, allowed_token_ids=allowed, **fields)
        assert {token_id for ids in found for token_id in ids} <= set(allowed)
    assert len({*ids_of(http, TEXT, allowed_token_ids=allowed, temperature=2.0, seed=1)[0]}) > 1
    # Biases and ends hold as well.
    assert ids_of(http, TEXT, allowed_token_ids=allowed, logit_bias={"80": 100, "81": 100}) == [[80] * 12]
    assert (
        ids_of(http, TEXT, allowed_token_ids=[2, 60], ignore_eos=False, min_tokens=3, max_tokens=4)[0][:3] == [60] * 3
    )
    # What others of the same steps may choose is their own.
    plain = ids_of(http, TEXT)
    assert plain == ids_of(http, TEXT, allowed_token_ids=list(range(384)))


def test_bad_words_never_stand_in_an_answer(scripted: RunningWorker) -> None:
    with scripted.client() as http:
        free = ask(http, CHAT)["choices"][0]["message"]["content"]
        assert free == "".join(SCRIPT)
        for words in (["Hello"], ["world"], [" world"], ["Hello world"], ["STOP", "it"]):
            for fields in ({}, {"temperature": 1.0, "seed": 3, "max_tokens": 30}):
                answer = ask(http, CHAT | {"max_tokens": 30}, bad_words=words, **fields)["choices"][0]
                assert not [word for word in words if word in answer["message"]["content"]]
        kept = ask(http, CHAT | {"max_tokens": 1}, bad_words=["Hello world"])["choices"][0]["message"]["content"]
        assert kept == "Hello"


def test_a_bad_word_of_several_tokens_loses_only_its_last(http: httpx.Client, worker: RunningWorker) -> None:
    [ids] = ids_of(http, TEXT)
    text = worker.replica.bundle.tokenizer.decode(ids[2:5])
    encoded = worker.replica.bundle.tokenizer.encode(text, add_special_tokens=False)
    [others] = ids_of(http, TEXT, bad_words=[text])
    assert len(encoded) > 1
    for start in range(len(others)):
        assert others[start : start + len(encoded)] != encoded
    # In the prompt it may stand.
    assert ids_of(http, TEXT | {"prompt": encoded}, bad_words=[text])


def test_token_ids_stand_beside_the_text(http: httpx.Client, worker: RunningWorker) -> None:
    tokenizer = worker.replica.bundle.tokenizer
    [ids] = ids_of(http, TEXT)
    whole = ask(http, TEXT, **IDS)
    assert whole["choices"][0]["prompt_token_ids"] == PROMPT
    assert tokenizer.decode(ids) == whole["choices"][0]["text"] and len(ids) == 12
    first, *rest = chunks(http, TEXT, **IDS)
    assert first["choices"][0]["prompt_token_ids"] == PROMPT
    assert not [chunk for chunk in rest if "prompt_token_ids" in chunk["choices"][0]]
    assert ids_of(http, TEXT, stop="e")[0] == ids[: len(ids_of(http, TEXT, stop="e")[0])]
    several = ask(http, TEXT | {"prompt": [PROMPT, [9, 8]], "n": 2}, **IDS)["choices"]
    assert [each["prompt_token_ids"] for each in several] == [PROMPT, PROMPT, [9, 8], [9, 8]]
    assert [each["token_ids"] for each in several[:2]] == [ids, ids]
    assert ids_of(http, TEXT, n=2, echo=True) == [ids, ids]
    for answer in (ask(http, TEXT), ask(http, CHAT, max_tokens=2)):
        assert "token_ids" not in answer["choices"][0] and "prompt_token_ids" not in json.dumps(answer)


def test_token_ids_of_a_chat(scripted: RunningWorker) -> None:
    with scripted.client() as http:
        prompt = http.post("/tokenize", json={"messages": CHAT["messages"]}).json()["tokens"]
        answer = ask(http, CHAT, **IDS)
        assert answer["prompt_token_ids"] == prompt
        assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"]
        assert ids_of(http, CHAT, n=2) == [answer["choices"][0]["token_ids"]] * 2
        first, *rest = chunks(http, CHAT, **IDS)
        assert first["prompt_token_ids"] == prompt and first["choices"][0]["token_ids"] == []
        assert not [chunk for chunk in rest if "prompt_token_ids" in chunk]


@pytest.mark.parametrize("stream", [False, True])
def test_what_ends_an_answer_may_be_shown(scripted: RunningWorker, stream: bool) -> None:
    def text(**fields: Any) -> str:
        if not stream:
            return ask(http, CHAT, **fields)["choices"][0]["message"]["content"]  # type: ignore[no-any-return]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks(http, CHAT, **fields))

    shown = {"include_stop_str_in_output": True}
    with scripted.client() as http:
        whole, world = "".join(SCRIPT), scripted.replica.bundle.tokenizer.token_id(" world")
        assert text(stop="STO") == "Hello world "
        assert text(stop="STO", **shown) == "Hello world STO"
        assert text(stop=["zz", "rld S"], **shown) == "Hello world S"
        assert (text(stop_token_ids=[world]), text(stop_token_ids=[world], **shown)) == ("Hello", "Hello world")
        # The model's own end is special, and both are to be said.
        assert text(**shown) == text(skip_special_tokens=False) == whole
        assert text(skip_special_tokens=False, **shown) == whole + "<|im_end|>"
        assert text(ignore_eos=True, max_tokens=5) == whole
        assert text(ignore_eos=True, max_tokens=5, skip_special_tokens=False) == whole + "<|im_end|>"


def test_ids_stand_for_tokens_where_that_is_asked(http: httpx.Client) -> None:
    [ids] = ids_of(http, TEXT)
    named = [f"token_id:{token_id}" for token_id in ids]
    spelled = {"return_tokens_as_token_ids": True}
    text = ask(http, TEXT, logprobs=2, **spelled)["choices"][0]["logprobs"]
    assert text["tokens"] == named
    plain = ask(http, TEXT, logprobs=2)["choices"][0]["logprobs"]
    assert (text["text_offset"], text["token_logprobs"]) == (plain["text_offset"], plain["token_logprobs"])
    for top, token in zip(text["top_logprobs"], named, strict=True):
        assert token in top and all(name.startswith("token_id:") for name in top)
    chat = CHAT | {"logprobs": True, "top_logprobs": 2, "max_tokens": 4, "ignore_eos": True}
    found = ask(http, chat, **spelled, **IDS)["choices"][0]
    assert [each["token"] for each in found["logprobs"]["content"]] == [f"token_id:{i}" for i in found["token_ids"]]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks(http, chat, **spelled)]
    assert [each for one in streamed if one for each in one["content"]] == found["logprobs"]["content"]


def test_log_probabilities_of_a_prompt_are_the_models(http: httpx.Client, checkpoint: Path) -> None:
    prompt = [(7 * i) % 380 + 3 for i in range(300)]
    expected = reference(checkpoint, prompt)
    body = TEXT | {"prompt": prompt, "max_tokens": 2}
    plain = ask(http, body)
    # The second time its blocks could be in the cache.
    for fields in ({}, {}, {"n": 2}, {"logprobs": 1}, {"logprobs": 5, "echo": True}):
        answer = ask(http, body, prompt_logprobs=3, **fields)
        assert answer["choices"][0]["text"].endswith(plain["choices"][0]["text"])
        for choice in answer["choices"]:
            first, *found = choice["prompt_logprobs"]
            assert first is None and len(found) == 299
            for place, by_id in enumerate(found):
                row, own = expected[place], prompt[place + 1]
                likeliest = row.topk(3).indices.tolist()
                assert list(by_id) == [str(each) for each in dict.fromkeys((own, *likeliest))]
                for name, each in by_id.items():
                    assert each["logprob"] == pytest.approx(row[int(name)].item(), abs=1e-4)
                    assert abs(each["rank"] - (int((row > row[int(name)]).sum()) + 1)) <= 1
        if "logprobs" in fields:
            top = answer["choices"][0]["logprobs"]["top_logprobs"]
            assert all(fields["logprobs"] <= len(each) <= fields["logprobs"] + 1 for each in top if each)
    assert torch.isfinite(expected).all()


def test_log_probabilities_of_a_chats_prompt(http: httpx.Client) -> None:
    answer = ask(http, CHAT | {"max_tokens": 2}, prompt_logprobs=0, **IDS)
    ids, found = answer["prompt_token_ids"], answer["prompt_logprobs"]
    assert [None if each is None else list(each) for each in found] == [None, *[[str(i)] for i in ids[1:]]]
    assert found[1][str(ids[1])]["rank"] >= 1
    spelled = "".join(each[str(i)]["decoded_token"] for each, i in zip(found[1:], ids[1:], strict=True))
    assert spelled.startswith("user\nHi<|im_end|>")
    assert "prompt_logprobs" not in ask(http, CHAT | {"max_tokens": 2})


def test_the_log_probabilities_of_certain_tokens(http: httpx.Client, checkpoint: Path) -> None:
    wanted = [300, 4, 8]
    answer = ask(http, TEXT, logprobs=1, logprob_token_ids=wanted, return_tokens_as_token_ids=True, **IDS)["choices"][0]
    expected = reference(checkpoint, PROMPT + answer["token_ids"])[len(PROMPT) - 1 :]
    for row, own, top in zip(expected, answer["token_ids"], answer["logprobs"]["top_logprobs"], strict=True):
        assert set(top) == {f"token_id:{each}" for each in (*wanted, own)}
        for each in wanted:
            assert top[f"token_id:{each}"] == pytest.approx(row[each].item(), abs=1e-4)
    chat = CHAT | {"logprobs": True, "max_tokens": 3, "logprob_token_ids": wanted, "return_tokens_as_token_ids": True}
    for token in ask(http, chat)["choices"][0]["logprobs"]["content"]:
        assert [each["token"] for each in token["top_logprobs"]] == [f"token_id:{each}" for each in wanted]


def test_all_of_the_vocabulary_where_the_operator_allows_it(checkpoint: Path) -> None:
    with running_worker(checkpoint, max_logprobs=-1) as open_handed, open_handed.client() as http:
        chat = CHAT | {"logprobs": True, "top_logprobs": -1, "max_tokens": 2, "prompt_logprobs": -1}
        answer = ask(http, chat)
        for token in answer["choices"][0]["logprobs"]["content"]:
            assert len(token["top_logprobs"]) == 384
            total = torch.tensor([each["logprob"] for each in token["top_logprobs"]]).double().exp().sum()
            assert total.item() == pytest.approx(1, abs=1e-4)
        assert all(len(each) == 384 for each in answer["prompt_logprobs"][1:])
    with running_worker(checkpoint, max_logprobs=3) as close_fisted, close_fisted.client() as http:
        assert http.post("/v1/completions", json=TEXT | {"logprobs": 3}).status_code == 200
        reply = http.post("/v1/completions", json=TEXT | {"logprobs": 4})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [5, 384]}, "allowed_token_ids"),
        ({"allowed_token_ids": 5}, "allowed_token_ids"),
        ({"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids"),
        ({"allowed_token_ids": [60], "stop_token_ids": [60], "min_tokens": 1}, "allowed_token_ids"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": "x"}, "bad_words"),
        ({"bad_words": ["x"] * 129}, "bad_words"),
        ({"bad_words": ["x" * 1001]}, "bad_words[0]"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"return_tokens_as_token_ids": "x"}, "return_tokens_as_token_ids"),
        ({"prompt_logprobs": -2}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprob_token_ids": [], "logprobs": 1}, "logprob_token_ids"),
        ({"logprob_token_ids": [9999], "logprobs": 1}, "logprob_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_what_does_not_fit_is_named(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    reply = http.post("/v1/completions", json=TEXT | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def test_bad_words_leave_something_of_what_is_allowed(http: httpx.Client, worker: RunningWorker) -> None:
    tokenizer = worker.replica.bundle.tokenizer
    [single] = tokenizer.encode("a", add_special_tokens=False)
    reply = http.post("/v1/completions", json=TEXT | {"allowed_token_ids": [single], "bad_words": ["a"]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "bad_words")
    pair = tokenizer.encode("aa", add_special_tokens=False)
    assert pair == [single, single]
    # Nothing else may come, so that the word does.
    assert ids_of(http, TEXT, allowed_token_ids=[single], bad_words=["aa"]) == [[single] * 12]
