"""The chat format of the demo models: renders the same text as `chat_template.jinja`, for the training data."""

import json
from pathlib import Path
from typing import Any

from demo.corpus.items import Message

TEMPLATE_FILE = Path(__file__).parent / "chat_template.jinja"
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"
GENERATION_PROMPT = f"{START}assistant\n"


def render_chat(messages: list[Message], tools: list[dict[str, Any]], *, add_generation_prompt: bool = False) -> str:
    """The text that the model reads. A test checks that it equals the Jinja template's."""
    turns = [(message["role"], message["content"]) for message in messages]
    first = turns.pop(0)[1] if turns and turns[0][0] == "system" else None
    parts = []
    if tools:
        offered = "\n".join(["<tools>", *(_to_json(tool) for tool in tools), "</tools>"])
        first = f"{first}\n{offered}" if first is not None else offered
    if first is not None:
        parts.append(_turn("system", first))
    parts += [_message(message) for message in messages[len(messages) - len(turns) :]]
    return "".join(parts) + (GENERATION_PROMPT if add_generation_prompt else "")


def _message(message: Message) -> str:
    role, content = message["role"], message["content"]
    if role == "tool":
        return _turn("user", f"<tool_response>\n{content}\n</tool_response>")
    calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
    return _turn(role, "\n".join(([content] if content or not calls else []) + calls))


def _call(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else _to_json(arguments)
    return f'{TOOL_CALL}\n{{"name": {_to_json(function["name"])}, "arguments": {text}}}\n{TOOL_CALL_END}'


def _turn(role: str, content: str) -> str:
    return f"{START}{role}\n{content}{END}\n"


def _to_json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)
