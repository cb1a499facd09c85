"""A long conversation with the demo models, whose window is 2048 tokens."""

from typing import Any
from uuid import uuid4

import httpx
import openai
import pytest

from tests.support.platform import Platform

WINDOW = 2048
NUM_TURNS = 200


@pytest.mark.long
def test_a_conversation_of_200_turns_goes_on_and_keeps_its_system_prompt(
    platform: Platform, client: openai.OpenAI
) -> None:
    name = uuid4().hex
    headers = {"X-Session-Id": name}
    session = httpx.Client(
        base_url=platform.base_url, headers={"Authorization": f"Bearer {platform.enterprise_key}"}, timeout=60
    )
    system: dict[str, Any] = {"role": "system", "content": "You are Ada. Answer briefly, and never shout."}
    most_tokens = 0
    for number in range(NUM_TURNS):
        question = {"role": "user", "content": f"Question {number}: what is {number} + 25? " + "Tell me why. " * 5}
        answer = client.chat.completions.create(
            model="small",
            messages=[system, question] if number == 0 else [question],  # type: ignore[list-item]
            max_tokens=8,
            extra_headers=headers,
        )
        assert answer.usage is not None
        most_tokens = max(most_tokens, answer.usage.prompt_tokens)
    with session:
        kept = session.get(f"/sessions/{name}").json()
        assert kept["messages"][0] == system
        assert kept["messages"][-2]["content"].startswith(f"Question {NUM_TURNS - 1}:")
        assert kept["num_left"] > NUM_TURNS
        # What the model was shown last is the system prompt and these turns, less its own answer: token for token.
        counted = session.post("/tokenize", json={"model": "small", "messages": kept["messages"][:-1]}).json()
        assert counted["count"] == answer.usage.prompt_tokens
        # The window was used, and never overfull.
        assert WINDOW * 3 // 4 < most_tokens <= WINDOW - 8
        assert session.delete(f"/sessions/{name}").status_code == 204
