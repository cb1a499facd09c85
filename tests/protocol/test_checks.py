import msgspec
import pytest

from protocol.checks import check_request, decode_body, output_limit
from protocol.errors import ErrorBody, ProtocolError
from protocol.requests import ChatCompletionRequest, CompletionRequest, list_prompts

CHAT = msgspec.json.Decoder(ChatCompletionRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)
HI = b'"messages": [{"role": "user", "content": "Hi"}]'


def chat(fields: bytes) -> ChatCompletionRequest:
    return decode_body(b'{"model": "m", ' + fields + b"}", CHAT)


def completion(fields: bytes) -> CompletionRequest:
    return decode_body(b'{"model": "m", ' + fields + b"}", COMPLETION)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"messages": []', "messages"),
        (b'"messages": "Hi"', "messages"),
        (b'"messages": [{"role": "friend", "content": "Hi"}]', "messages[0].role"),
        (b'"messages": [{"role": "user"}]', "messages[0].content"),
        (b'"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]', "messages[0].content[0].text"),
        (b'"messages": [{"role": "user", "content": [{"type": "image_url"}]}]', "messages[0].content[0].type"),
        (HI + b', "temperature": "hot"', "temperature"),
        (HI + b', "temperature": 2.5', "temperature"),
        (HI + b', "top_p": 0', "top_p"),
        (HI + b', "max_token": 5', "max_token"),
        (HI + b', "max_tokens": 0', "max_tokens"),
        (HI + b', "stop": [""]', "stop[0]"),
        (HI + b', "stream_options": {"usage": true}', "stream_options.usage"),
        (HI + b', "logit_bias": {"7": 101}', "logit_bias[...]"),
        (HI + b', "seed": 1e30', "seed"),
        (HI + b', "n": 0', "n"),
        (HI + b', "n": 17', "n"),
        (HI + b', "logprobs": 3', "logprobs"),
        (HI + b', "top_logprobs": 21', "top_logprobs"),
        (HI + b', "top_logprobs": -1', "top_logprobs"),
        (HI + b', "echo": true', "echo"),
        (HI + b', "best_of": 2', "best_of"),
        (HI + b', "top_k": -2', "top_k"),
        (HI + b', "min_p": 1.5', "min_p"),
        (HI + b', "repetition_penalty": 0', "repetition_penalty"),
        (HI + b', "presence_penalty": 2.5', "presence_penalty"),
        (HI + b', "frequency_penalty": -2.5', "frequency_penalty"),
        (HI + b', "min_tokens": -1', "min_tokens"),
        (HI + b', "tools": [{"type": "function", "function": {"name": ""}}]', "tools[0].function.name"),
        (HI + b', "stop_token_ids": [-1]', "stop_token_ids[0]"),
        (HI + b', "stop_token_ids": [4294967296]', "stop_token_ids[0]"),
        (HI + b', "stop_token_ids": [' + b",".join([b"1"] * 129) + b"]", "stop_token_ids"),
    ],
)
def test_a_wrong_field_is_named(fields: bytes, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        chat(fields)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert param in caught.value.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"model": "\xff"}', b'{"model": "\\ud800"}'])
def test_what_is_no_json_object_in_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(body, CHAT)


def test_a_body_nested_without_end_is_refused() -> None:
    nested = b"[" * 100_000 + b"]" * 100_000
    tool = b'{"type": "function", "function": {"name": "f", "parameters": {"a": ' + nested + b"}}}"
    with pytest.raises(ProtocolError, match="nested"):
        chat(HI + b', "tools": [' + tool + b"]")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"messages": [{"role": "user", "content": ""}]', "messages[0].content"),
        (b'"messages": [{"role": "assistant", "tool_calls": []}]', "messages[0].content"),
        (HI + b', "max_tokens": 5, "max_completion_tokens": 6', "max_tokens"),
        (HI + b', "stream_options": {"include_usage": true}', "stream_options"),
        (HI + b', "top_logprobs": 2', "top_logprobs"),
        (HI + b', "logprobs": false, "top_logprobs": 0', "top_logprobs"),
        (HI + b', "max_tokens": 5, "min_tokens": 6', "min_tokens"),
        (HI + b', "max_completion_tokens": 5, "min_tokens": 6', "min_tokens"),
        (HI + b', "logit_bias": {"x": 1}', "logit_bias"),
        (HI + b', "logit_bias": {"1_0": 1}', "logit_bias"),
        (HI + b', "logit_bias": {"' + b"9" * 5000 + b'": 1}', "logit_bias"),
        (HI + b', "response_format": {"type": "json_object"}', "response_format"),
        (HI + b', "tool_choice": "required"', "tool_choice"),
        (HI + b', "stop": [' + b",".join([b'"a"'] * 17) + b"]", "stop"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields: bytes, param: str) -> None:
    request = chat(fields)
    with pytest.raises(ProtocolError) as caught:
        check_request(request)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        (b'"Hi"', ["Hi"]),
        (b"[1, 2]", [[1, 2]]),
        (b'["a", "b"]', ["a", "b"]),
        (b"[[1], [2, 3]]", [[1], [2, 3]]),
    ],
)
def test_a_prompt_is_text_or_token_ids_or_several_of_one_kind(prompt: bytes, prompts: list[str | list[int]]) -> None:
    request = completion(b'"prompt": ' + prompt)
    check_request(request)
    assert list_prompts(request) == prompts


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"prompt": "a", "logprobs": 6', "logprobs"),
        (b'"prompt": "a", "logprobs": true', "logprobs"),
        (b'"prompt": "a", "top_logprobs": 2', "top_logprobs"),
        (b'"prompt": "a", "max_completion_tokens": 2', "max_completion_tokens"),
        (b'"prompt": [1, 4294967296]', "prompt[1]"),
        (b'"prompt": [[1], [100000000000000000000]]', "prompt[1][0]"),
    ],
)
def test_a_field_of_the_other_form_is_named(fields: bytes, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        completion(fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"prompt": "a", "max_tokens": 0', "max_tokens"),
        (b'"prompt": "a", "n": 3, "best_of": 2', "best_of"),
        (b'"prompt": "a", "best_of": 2', "best_of"),
        (b'"prompt": "a", "suffix": "b"', "suffix"),
        (b'"prompt": ["a", ""]', "prompt[1]"),
        (b'"prompt": [[1], []]', "prompt[1]"),
        (b'"prompt": [' + b",".join([b'"a"'] * 129) + b"]", "prompt"),
        (b'"n": 16, "prompt": [' + b",".join([b'"a"'] * 9) + b"]", "n"),
    ],
)
def test_a_completion_that_contradicts_itself_is_refused_by_name(fields: bytes, param: str) -> None:
    request = completion(fields)
    with pytest.raises(ProtocolError) as caught:
        check_request(request)
    assert caught.value.param == param


def test_what_goes_together_is_taken() -> None:
    check_request(completion(b'"prompt": "a", "max_tokens": 0, "echo": true, "logprobs": 0'))
    check_request(completion(b'"prompt": "a", "n": 3, "best_of": 3, "temperature": 0'))
    check_request(chat(HI + b', "logprobs": true, "top_logprobs": 20, "n": 16'))


@pytest.mark.parametrize("prompt", [b'""', b"[]", b'[1, "a"]', b"[-1]", b"[true]", b"[1.5]", b'[[1], "a"]', b"[[-1]]"])
def test_other_prompts_are_refused_by_name(prompt: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_request(completion(b'"prompt": ' + prompt))
    assert (caught.value.param or "").startswith("prompt")


def test_the_newer_name_of_the_output_limit_counts_too() -> None:
    assert output_limit(chat(HI + b', "max_completion_tokens": 6')) == 6
    assert output_limit(chat(HI + b', "max_tokens": 5')) == 5
    assert output_limit(chat(HI)) is None


def test_an_error_has_the_shape_of_openai() -> None:
    body = ProtocolError("no", param="p", code="c").body()
    assert msgspec.json.decode(body) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "p", "code": "c"}
    }
    assert msgspec.json.decode(body, type=ErrorBody).error.param == "p"
