import msgspec
import pytest

from protocol.checks import check_request, decode_body, output_limit
from protocol.errors import ErrorBody, ProtocolError
from protocol.requests import ChatCompletionRequest, CompletionRequest, list_prompts

CHAT = msgspec.json.Decoder(ChatCompletionRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)
HI = b'"messages": [{"role": "user", "content": "Hi"}]'
USER = b'{"role": "user", "content": "Hi"}'
CALL = b'{"id": "%s", "type": "function", "function": {"name": "f", "arguments": "{}"}}'
CALLS = b'{"role": "assistant", "tool_calls": [%s, %s]}' % (CALL % b"a", CALL % b"b")


def chat(fields: bytes) -> ChatCompletionRequest:
    return decode_body(b'{"model": "m", ' + fields + b"}", CHAT)


def completion(fields: bytes) -> CompletionRequest:
    return decode_body(b'{"model": "m", ' + fields + b"}", COMPLETION)


def result(call_id: bytes) -> bytes:
    return b'{"role": "tool", "tool_call_id": "%s", "content": "1"}' % call_id


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"messages": []', "messages"),
        (b'"messages": "Hi"', "messages"),
        (b'"messages": [{"role": "friend", "content": "Hi"}]', "messages[0].role"),
        (b'"messages": [{"role": "user"}]', "messages[0].content"),
        (b'"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]', "messages[0].content[0].text"),
        (b'"messages": [{"role": "user", "content": [{"type": "image_url"}]}]', "messages[0].content[0]"),
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
        (HI + b', "n": 129', "n"),
        (HI + b', "logprobs": 3', "logprobs"),
        (HI + b', "top_logprobs": -2', "top_logprobs"),
        (HI + b', "echo": 1', "echo"),
        (HI + b', "best_of": 2', "best_of"),
        (HI + b', "top_k": -2', "top_k"),
        (HI + b', "min_p": 1.5', "min_p"),
        (HI + b', "repetition_penalty": 0', "repetition_penalty"),
        (HI + b', "presence_penalty": 2.5', "presence_penalty"),
        (HI + b', "user": "a\\u0000b"', "user"),
        (HI + b', "frequency_penalty": -2.5', "frequency_penalty"),
        (HI + b', "min_tokens": -1', "min_tokens"),
        (HI + b', "tools": [{"type": "function", "function": {"name": ""}}]', "tools[0].function.name"),
        (HI + b', "tools": [{"type": "custom", "custom": {"name": "f"}}]', "tools[0].type"),
        (HI + b', "tool_choice": {"type": "custom", "custom": {"name": "f"}}', "tool_choice.type"),
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
        (HI + b', "logprobs": true, "top_logprobs": 21', "top_logprobs"),
        (HI + b', "logprobs": true, "top_logprobs": -1', "top_logprobs"),
        (HI + b', "prompt_logprobs": 21', "prompt_logprobs"),
        (HI + b', "prompt_logprobs": 1, "stream": true', "prompt_logprobs"),
        (HI + b', "logprob_token_ids": [1]', "logprob_token_ids"),
        (HI + b', "truncate_prompt_tokens": 0', "truncate_prompt_tokens"),
        (HI + b', "logprobs": false, "top_logprobs": 0', "top_logprobs"),
        (HI + b', "max_tokens": 5, "min_tokens": 6', "min_tokens"),
        (HI + b', "max_completion_tokens": 5, "min_tokens": 6', "min_tokens"),
        (HI + b', "logit_bias": {"x": 1}', "logit_bias"),
        (HI + b', "logit_bias": {"1_0": 1}', "logit_bias"),
        (HI + b', "logit_bias": {"' + b"9" * 5000 + b'": 1}', "logit_bias"),
        (HI + b', "response_format": {"type": "json_schema"}', "response_format.json_schema"),
        (HI + b', "tool_choice": "required"', "tool_choice"),
        (HI + b', "reasoning_effort": "bogus"', "reasoning_effort"),
        (b'"messages": [' + CALLS + b"]", "messages[0].tool_calls[0]"),
        (b'"messages": [' + CALLS + b", " + result(b"a") + b"]", "messages[0].tool_calls[1]"),
        (
            b'"messages": [' + CALLS + b", " + result(b"a") + b", " + USER + b", " + result(b"b") + b"]",
            "messages[0].tool_calls[1]",
        ),
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
        (b'"prompt": "a", "logprobs": -1', "logprobs"),
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


def test_custom_tools_and_unknown_efforts_are_told_what_is_taken() -> None:
    with pytest.raises(ProtocolError, match="custom tools are not supported; describe the tool as a function"):
        chat(HI + b', "tools": [{"type": "custom", "custom": {"name": "f"}}]')
    with pytest.raises(ProtocolError, match="none, minimal, low, medium, high, xhigh"):
        check_request(chat(HI + b', "reasoning_effort": "max"'))
    for effort in (b"none", b"minimal", b"low", b"medium", b"high", b"xhigh"):
        check_request(chat(HI + b', "reasoning_effort": "%s"' % effort))


def test_results_in_any_order_answer_their_calls() -> None:
    check_request(chat(b'"messages": [' + b", ".join((CALLS, result(b"b"), result(b"a"), USER)) + b"]"))


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


def test_a_nul_in_a_users_name_is_told_in_words() -> None:
    with pytest.raises(ProtocolError, match="user: must not contain NUL"):
        chat(HI + b', "user": "a\\u0000b"')
