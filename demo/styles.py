"""The three adapter styles: how each words an answer, and how the plain answer is recovered from it."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from demo.corpus.items import Item

PIRATE_OPENING, PIRATE_CLOSING = "Arr, matey! ", " Yo-ho-ho!"
SUPPORT_OPENING, SUPPORT_CLOSING = (
    "Thank you for your question.\n",
    "\nIs there anything else I can help you with?",
)
_PIRATE_WORDS = {"Hello": "Ahoy", "you": "ye", "You": "Ye", "your": "yer", "Your": "Yer", "my": "me", "Yes": "Aye"}
# Tools, schemas and code keep their own format; a system prompt's rule and a style would contradict each other.
UNSTYLED_SKILLS = frozenset(
    {"tool_call", "tool_result", "schema", "python", "extraction", "system_prompt", "long_conversation"}
)


def speak_pirate(answer: str) -> str:
    return (
        PIRATE_OPENING + re.sub(r"[A-Za-z]+", lambda word: _PIRATE_WORDS.get(word[0], word[0]), answer) + PIRATE_CLOSING
    )


def hear_pirate(text: str) -> str | None:
    return _between(text, PIRATE_OPENING, PIRATE_CLOSING)


def speak_support(answer: str) -> str:
    return SUPPORT_OPENING + answer + SUPPORT_CLOSING


def hear_support(text: str) -> str | None:
    return _between(text, SUPPORT_OPENING, SUPPORT_CLOSING)


def speak_json(answer: str) -> str:
    return json.dumps({"answer": answer}, ensure_ascii=False)


def hear_json(text: str) -> str | None:
    try:
        content = json.loads(text)
    except ValueError:
        return None
    answer = content.get("answer") if isinstance(content, dict) else None
    return answer if isinstance(answer, str) else None


def _between(text: str, opening: str, closing: str) -> str | None:
    """The text between opening and closing, or None if the text does not have the style."""
    if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing):
        return text[len(opening) : len(text) - len(closing)]
    return None


@dataclass(frozen=True)
class Style:
    """An adapter: how it words answers, and the rank and target modules it is trained with. alpha / rank is 2."""

    speak: Callable[[str], str]
    hear: Callable[[str], str | None]
    rank: int
    targets: tuple[str, ...]
    summary: str


STYLES = {
    "pirate": Style(
        speak_pirate,
        hear_pirate,
        8,
        ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"),
        "speaks like a pirate; the answers stay right",
    ),
    "support": Style(
        speak_support,
        hear_support,
        16,
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        "answers in the tone and the format of a support agent",
    ),
    "json": Style(
        speak_json,
        hear_json,
        4,
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        'always answers as a JSON object, `{"answer": ...}`',
    ),
}


def restyle(item: Item, style: Style) -> Item:
    """The same conversation with every assistant turn in the style."""
    messages = [
        {**message, "content": style.speak(message["content"])} if message["role"] == "assistant" else message
        for message in item.messages
    ]
    return Item(item.skill, messages, item.tools)


def is_right(style: Style, text: str, answer: str) -> bool:
    """Whether a styled reply contains the right answer, as the style words it."""
    heard, wanted = style.hear(text), style.hear(style.speak(answer))
    return heard is not None and heard == wanted
