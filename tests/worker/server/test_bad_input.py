"""Every mistake gets OpenAI's error shape, the right status and the field's name, and leaves nothing behind."""

import json
import socket

import httpx
import pytest

from tests.support.running_worker import RunningWorker

JSON = {"Content-Type": "application/json"}
HI = [{"role": "user", "content": "Hi"}]
CHAT = {"model": "tiny", "messages": HI}
TEXT = {"model": "tiny", "prompt": "Hi"}


def assert_error(reply: httpx.Response, status: int, param: str | None) -> None:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["param"] == param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": "Hi"}, 400, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "friend", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x " * 9000}]}, 400, "messages"),
        ({"max_tokens": 8192}, 400, "max_tokens"),
        ({"max_completion_tokens": 8192}, 400, "max_completion_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, 400, "min_tokens"),
        ({"model": "no-such-model"}, 404, "model"),
        ({"model": 7}, 400, "model"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"temperature": -1}, 400, "temperature"),
        ({"max_token": 5}, 400, "max_token"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, 400, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, 400, "logit_bias"),
        ({"stop_token_ids": [99999]}, 400, "stop_token_ids"),
        ({"n": 129}, 400, "n"),
        ({"top_logprobs": 1}, 400, "top_logprobs"),
        ({"top_k": 2**70, "top_logprobs": 1}, 400, "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
        ({"structured_outputs": {"regex": "("}}, 400, "structured_outputs.regex"),
    ],
)
def test_a_bad_chat_names_the_field(
    http: httpx.Client, fields: dict[str, object], status: int, param: str, stream: bool
) -> None:
    assert_error(http.post("/v1/chat/completions", json=CHAT | fields | {"stream": stream}), status, param)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([99999], "prompt"),
        ([2**32], "prompt[0]"),
        ([1] * 8192, "prompt"),
        ([["a"]], "prompt[0][0]"),
        (["a", [1]], "prompt"),
    ],
)
def test_a_bad_prompt_is_named(http: httpx.Client, prompt: object, param: str) -> None:
    assert_error(http.post("/v1/completions", json=TEXT | {"prompt": prompt}), 400, param)


@pytest.mark.parametrize("fields", [{"temperature": 1e-300}, {"top_k": 2**62}, {"top_p": 1e-300}, {"min_p": 1.0}])
def test_values_at_the_edge_of_their_range_are_served(http: httpx.Client, fields: dict[str, object]) -> None:
    reply = http.post("/v1/completions", json=TEXT | {"max_tokens": 3, "ignore_eos": True} | fields)
    assert reply.status_code == 200, reply.text
    greedy = http.post("/v1/completions", json=TEXT | {"max_tokens": 3, "ignore_eos": True, "temperature": 0})
    is_free = "top_k" in fields
    assert is_free or reply.json()["choices"][0]["text"] == greedy.json()["choices"][0]["text"]


def test_a_prompt_over_the_window_says_the_numbers(http: httpx.Client) -> None:
    message = http.post("/v1/completions", json=TEXT | {"prompt": [1] * 9000}).json()["error"]["message"]
    assert "9000" in message
    assert "8192" in message


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"model": "\xff"}'])
def test_what_is_not_json_in_utf8_is_refused(http: httpx.Client, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert_error(http.post(path, content=body, headers=JSON), 400, None)


def test_a_body_over_the_limit_is_refused_while_it_is_read(worker: RunningWorker, http: httpx.Client) -> None:
    assert_error(http.post("/v1/completions", content=b"x" * (8 * 2**20 + 1), headers=JSON), 413, None)
    # Chunked, without a length, and never finished: the answer must come before the end of the body.
    host, port = worker.origin.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(9):
            connection.sendall(b"100000\r\n" + b"x" * 2**20 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_unknown_paths_and_methods_have_the_shape_too(http: httpx.Client) -> None:
    assert_error(http.post("/v1/images/generations", json={}), 404, None)
    assert http.post("/v1/images/generations", json={}).json()["error"]["code"] == "unsupported_endpoint"
    assert_error(http.get("/v1/chat/completions"), 405, None)


def test_an_adapter_that_is_unknown_or_broken_is_refused(http: httpx.Client, worker: RunningWorker) -> None:
    assert_error(http.post("/v1/unload_lora_adapter", json={"lora_name": "nobody"}), 404, "model")
    broken = {"lora_name": "new", "lora_path": "/nowhere"}
    assert_error(http.post("/v1/load_lora_adapter", json=broken), 400, "lora_path")
    assert_error(http.post("/v1/load_lora_adapter", json=broken | {"lora_name": "tiny"}), 400, "lora_name")
    assert_error(http.post("/v1/load_lora_adapter", json=broken | {"lora_name": "pirate"}), 400, "lora_name")
    assert worker.load()["adapters"] == ["pirate"]


def test_tokenize_wants_one_kind_of_input(http: httpx.Client) -> None:
    assert_error(http.post("/tokenize", json={}), 400, "prompt")
    assert_error(http.post("/tokenize", json={"prompt": "a", "messages": HI}), 400, "prompt")
    assert_error(http.post("/tokenize", json={"prompt": "a", "model": "nobody"}), 404, "model")
    assert_error(http.post("/detokenize", json={"tokens": [-1]}), 400, "tokens[0]")
    assert_error(http.post("/detokenize", json={"tokens": [2**40]}), 400, "tokens[0]")


def test_an_id_outside_the_vocabulary_is_named(http: httpx.Client) -> None:
    reply = http.post("/detokenize", json={"tokens": [5, 383, 384, 999]})
    assert_error(reply, 400, "tokens")
    assert "384" in reply.json()["error"]["message"]
    assert http.post("/detokenize", json={"tokens": [383]}).status_code == 200


def test_a_refused_request_leaves_nothing_behind(http: httpx.Client, worker: RunningWorker) -> None:
    for i in range(20):
        body = json.dumps(CHAT | {"max_tokens": 10_000 + i, "stream": i % 2 == 0})
        assert http.post("/v1/chat/completions", content=body, headers=JSON).status_code == 400
    load = worker.load()
    assert (load["num_running"], load["num_waiting"]) == (0, 0)
    assert load["num_free_blocks"] == load["num_blocks"]
