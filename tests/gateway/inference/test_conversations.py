"""A conversation that went to the large pool stays there while it is warm."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway.upstream.conversations import MAX_KEPT, Conversations
from protocol.messages import AssistantMessage, Message, UserMessage
from tests.support.gateways import Gateway

HARD = "Prove step by step that there are infinitely many primes, then write the proof as a Python program."
SYSTEM = {"role": "system", "content": "You are brief."}


def said(*texts: str) -> list[dict[str, str]]:
    """By the user and the model in turn, the user last."""
    return [SYSTEM, *({"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts))]


@pytest.fixture
def ask(gateway: Gateway) -> Callable[..., Any]:
    async def ask(key: str, *texts: str, path: str = "/chat/completions") -> str:
        async with gateway.client(key) as client:
            reply = await client.post(path, json={"model": "auto", "messages": said(*texts), "max_tokens": 2})
            assert reply.status_code == 200, reply.text
            return str(reply.json()["route"] if path == "/route" else reply.headers["x-tiergate-route"])

    return ask


async def test_what_follows_a_hard_question_is_answered_where_that_was(
    gateway: Gateway, ask: Callable[..., Any]
) -> None:
    key = await gateway.make_key()
    assert await ask(key, "Thanks!") == "simple"
    assert await ask(key, HARD) == "complex"
    assert await ask(key, HARD, "First, ...", "Thanks!") == "warm"
    assert await ask(key, HARD, "First, ...", "Thanks!", "Welcome.", "Bye!") == "warm"
    assert await ask(key, HARD, "First, ...", "Thanks!", path="/route") == "warm"


async def test_other_conversations_and_other_tenants_are_not_taken_for_it(
    gateway: Gateway, ask: Callable[..., Any]
) -> None:
    key = await gateway.make_key()
    assert await ask(key, HARD) == "complex"
    assert await ask(key, "Hi!", "Hello.", "Thanks!") == "simple"
    assert await ask(await gateway.make_key(), HARD, "First, ...", "Thanks!") == "simple"


async def test_another_process_of_the_gateway_knows_it_too_and_forgets_it_with_redis(
    gateway: Gateway, ask: Callable[..., Any]
) -> None:
    key, conversations = await gateway.make_key(), gateway.services.conversations
    assert await ask(key, HARD) == "complex"
    conversations._until_s.clear()
    assert await ask(key, HARD, "First, ...", "Thanks!") == "warm"
    conversations._until_s.clear()
    for name in await gateway.services.limiter.redis.execute("KEYS", "tiergate:warm:*"):
        await gateway.services.limiter.redis.execute("DEL", name)
    assert await ask(key, HARD, "First, ...", "Thanks!") == "simple"


async def test_what_is_kept_is_bounded_and_needs_no_redis(gateway: Gateway) -> None:
    conversations = Conversations(gateway.services.limiter.redis, is_away=lambda: True)

    def messages(number: int, *more: Message) -> list[Message]:
        return [UserMessage(content=f"question {number}"), *more]

    for number in range(MAX_KEPT + 5):
        conversations.note("t", messages(number))
    follow_up = [AssistantMessage(content="answer"), UserMessage(content="go on")]
    warm = [await conversations.is_warm("t", messages(number, *follow_up)) for number in (0, 4, 5, MAX_KEPT + 4)]
    assert warm == [False, False, True, True]
    assert not await conversations.is_warm("t", messages(5))
    assert not await conversations.is_warm("u", messages(5, *follow_up))
