"""The demo's skills say themselves which of them are hard; the default threshold has to agree."""

import json
from typing import Any

import msgspec
import pytest

from demo.corpus.build import draw_items, read_plans
from protocol.messages import Message, Tool
from router.complexity import DEFAULT_THRESHOLD, chat_features, score

SEED, PLANS = read_plans()
_MESSAGES, _TOOLS = msgspec.json.Decoder(list[Message]), msgspec.json.Decoder(list[Tool])
NUM_ITEMS = 20


@pytest.mark.parametrize("skill", PLANS)
def test_hard_skills_are_complex_and_easy_ones_simple(skill: str) -> None:
    is_hard = PLANS[skill].level == "hard"
    items = list(draw_items(skill, NUM_ITEMS, seed=SEED, is_heldout=True))
    scores = [score(chat_features(_messages(item.prompt), _TOOLS.decode(json.dumps(item.tools)))) for item in items]
    assert sum((each >= DEFAULT_THRESHOLD) == is_hard for each in scores) >= 0.95 * len(items), scores


def _messages(prompt: list[dict[str, Any]]) -> list[Message]:
    """As a client sends them: calls with ids, arguments as text."""
    return _MESSAGES.decode(json.dumps([_as_sent(message) for message in prompt]))


def _as_sent(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": "call", "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, **({"tool_calls": calls} if calls else {}), "tool_call_id": "call"}
