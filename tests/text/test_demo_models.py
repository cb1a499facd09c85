"""The demo's tokenizer and template give the ids that transformers gives."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

import demo
from protocol.messages import (
    AssistantMessage,
    FunctionCall,
    FunctionDefinition,
    Message,
    SystemMessage,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from text.bundle import Bundle

MODELS = Path(demo.__file__).parent / "models"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = Tool(function=FunctionDefinition(name="weather", description="Say <it>: 日本", parameters=PARAMETERS))
PLAIN_TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Say <it>: 日本", "parameters": PARAMETERS},
}
CALL = ToolCall(id="call_1", function=FunctionCall("weather", '{"city": "Köln"}'))
CHAT: list[Message] = [
    SystemMessage(content="Be brief."),
    UserMessage(content="Weather in Köln? 👩‍🚀"),
    AssistantMessage(tool_calls=[CALL]),
    ToolMessage(content="17 degrees", tool_call_id="call_1"),
]
PLAIN_CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Köln? 👩‍🚀"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}],
    },
    {"role": "tool", "content": "17 degrees"},
]


@pytest.mark.parametrize("name", ["small", "large"])
def test_chats_and_texts_have_the_ids_of_transformers(name: str) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(MODELS / name)
    ours = Bundle.from_folder(MODELS / name)
    for tools, plain in ((None, None), ([TOOL], [PLAIN_TOOL])):
        expected = theirs.apply_chat_template(PLAIN_CHAT, tools=plain, add_generation_prompt=True)
        assert ours.encode_chat(CHAT, tools) == expected["input_ids"]
    for text in ("The capital of France", " leading", "tabs\tand\n\nlines  ", "17 + 25 = 42", "日本語 👍🏽 é"):
        assert ours.encode_text(text) == theirs(text)["input_ids"]
        assert ours.tokenizer.decode(ours.encode_text(text)) == text


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_end_of_a_turn_ends_an_answer(name: str) -> None:
    tokenizer = Bundle.from_folder(MODELS / name).tokenizer
    assert tokenizer.token_id("<|im_end|>") in tokenizer.eos_token_ids
    assert tokenizer.token_id("<tool_call>") not in tokenizer.special_token_ids
