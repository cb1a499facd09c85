"""What a model thinks between <think> and </think> arrives beside the answer, in streams too."""

import json
from collections.abc import Iterator

import openai
import pytest

from tests.support.running_worker import running_worker
from tests.support.scripted import make_scripted_checkpoint

SCRIPT = [
    *("<think>", "\nLook", " at it.", "\n</thi", "nk>\n\n", "I look.", "\n<tool_call>"),
    *('{"name": "weather", "arguments": {"ci', 'ty": "Köln"}', "}\n</tool_call>"),
]
NUM_THOUGHT = 5
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Weather?"}], "temperature": 0}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = make_scripted_checkpoint(tmp_path_factory.mktemp("scripted") / "m", SCRIPT)
    with (
        running_worker(folder, reasoning_parser="think") as worker,
        openai.OpenAI(base_url=worker.base_url, api_key="none", max_retries=0) as opened,
    ):
        yield opened


def test_thoughts_stand_beside_the_answer_and_are_counted(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(**ASK, tools=[TOOL])
    choice = completion.choices[0]
    assert choice.message.model_extra == {"reasoning_content": "Look at it."}
    assert choice.message.content == "I look."
    assert choice.message.tool_calls is not None
    assert [call.function.arguments for call in choice.message.tool_calls] == ['{"city": "Köln"}']
    assert choice.finish_reason == "tool_calls"
    assert completion.usage is not None and completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == NUM_THOUGHT


def test_streamed_thoughts_are_the_same(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(**ASK, tools=[TOOL], stream=True, stream_options=options))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas) == "Look at it."
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    details = chunks[-1].usage.completion_tokens_details
    assert details is not None and details.reasoning_tokens == NUM_THOUGHT


def test_stop_strings_look_at_the_answer_and_logprobs_at_all(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(**ASK, stop=["look", "Look"], logprobs=True)
    choice = completion.choices[0]
    assert choice.message.model_extra == {"reasoning_content": "Look at it."}
    assert (choice.message.content, choice.finish_reason) == ("I ", "stop")
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert completion.usage is not None
    assert len(choice.logprobs.content) == completion.usage.completion_tokens == NUM_THOUGHT + 1


def test_thoughts_that_the_limit_cuts_are_no_answer(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(**ASK, max_tokens=3, n=2)
    for choice in completion.choices:
        assert choice.message.content is None
        assert choice.message.model_extra == {"reasoning_content": "Look at it."}
        assert choice.finish_reason == "length"
    assert completion.usage is not None and completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == 6


def test_a_forced_call_comes_after_the_thoughts(client: openai.OpenAI) -> None:
    ping = {"type": "function", "function": {"name": "ping"}}
    choice = client.chat.completions.create(**ASK, tools=[ping], tool_choice="required", max_tokens=60).choices[0]
    assert choice.message.model_extra == {"reasoning_content": "Look at it."}
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.name == "ping"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {}


MARKS = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]")
MISTRAL = [
    *("[THINK]", "Look", " at it.", "[/THINK]", "I look.", "[TOOL_CALLS]", "weather", "[ARGS]"),
    *('{"ci', 'ty": "Köln"}'),
]
WEATHER = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 3, "maximum": 3}},
    "required": ["days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Its marks are control tokens."""
    folder = make_scripted_checkpoint(tmp_path_factory.mktemp("mistral") / "m", MISTRAL, special=MARKS)
    with (
        running_worker(folder, reasoning_parser="mistral", tool_parser="mistral") as worker,
        openai.OpenAI(base_url=worker.base_url, api_key="none", max_retries=0) as opened,
    ):
        yield opened


def test_a_strict_call_is_held_from_the_control_token_that_begins_it(mistral: openai.OpenAI) -> None:
    strict = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": WEATHER}}
    choice = mistral.chat.completions.create(**ASK, tools=[strict], max_tokens=60).choices[0]
    assert choice.message.model_extra == {"reasoning_content": "Look at it."}
    assert choice.message.content == "I look."
    assert choice.message.tool_calls is not None
    # Free, the model says {"city": "Köln"}.
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"days": 3})
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"tool_choice": "auto", "response_format": "schema"}])
def test_what_is_held_begins_after_thoughts_that_a_control_token_ends(
    mistral: openai.OpenAI, fields: dict[str, object]
) -> None:
    if "response_format" in fields:
        fields |= {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    completion = mistral.chat.completions.create(**ASK, tools=[tool], max_tokens=60, **fields)
    choice = completion.choices[0]
    assert choice.message.model_extra == {"reasoning_content": "Look at it."}
    said = [call.function.arguments for call in choice.message.tool_calls or []] or [choice.message.content]
    assert [json.loads(text) for text in said] == [{"days": 3}]
    assert completion.usage is not None and completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == 4


def test_a_control_token_that_a_client_spells_is_text(mistral: openai.OpenAI) -> None:
    choice = mistral.chat.completions.create(
        **ASK, max_tokens=60, extra_body={"structured_outputs": {"regex": "a\\[TOOL_CALLS\\]b"}}
    ).choices[0]
    assert choice.message.content == "a[TOOL_CALLS]b"
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "x[ARGS]"}}
    choice = mistral.chat.completions.create(**ASK, max_tokens=60, response_format=tag).choices[0]
    assert choice.message.content == "x[ARGS]"
