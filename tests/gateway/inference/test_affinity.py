"""Requests whose prompts begin alike are sent where that beginning is cached; tenants do not meet there by design."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.inference.affinity import affinity_of
from protocol.requests import ChatCompletionRequest, CompletionRequest
from router.balance import Affinity

SYSTEM = "You are the assistant of Acme, a maker of anvils. " * 10


def chat(*messages: tuple[str, str]) -> ChatCompletionRequest:
    body: dict[str, Any] = {"model": "auto", "messages": [{"role": role, "content": text} for role, text in messages]}
    return msgspec.convert(body, ChatCompletionRequest)


def affinity(request: ChatCompletionRequest | CompletionRequest, tenant: str = "t") -> Affinity:
    found = affinity_of(request, tenant)
    assert found is not None
    return found


def test_a_conversation_keeps_its_home_as_it_grows() -> None:
    first = affinity(chat(("system", SYSTEM), ("user", "Hi!")))
    assert affinity(chat(("system", SYSTEM), ("user", "Hi!"), ("assistant", "Yes?"), ("user", "Bye!"))) == first


def test_conversations_with_one_system_prompt_share_its_homes_but_not_one_of_them() -> None:
    first, other = (affinity(chat(("system", SYSTEM), ("user", text))) for text in ("Hi!", "Ho!"))
    assert first.group == other.group and first.turn != other.turn


def test_tenants_share_no_homes() -> None:
    request = chat(("system", SYSTEM), ("user", "Hi!"))
    assert affinity(request).group != affinity(request, "another").group


def test_a_short_prompt_has_no_home() -> None:
    assert affinity_of(chat(("user", "Hi!")), "t") is None
    assert affinity_of(CompletionRequest(model="auto", prompt="Hi!"), "t") is None


def test_without_a_long_system_prompt_the_conversation_is_its_own_group() -> None:
    first, other = (affinity(chat(("system", "Be kind."), ("user", text * 200))) for text in ("one ", "two "))
    assert first.group != other.group


def test_prompts_of_token_ids_have_homes_too() -> None:
    one = CompletionRequest(model="auto", prompt=list(range(600)))
    same_beginning = CompletionRequest(model="auto", prompt=[*range(500), 9])
    assert affinity(one).group == affinity(same_beginning).group
    assert affinity(one).turn == affinity(CompletionRequest(model="auto", prompt=list(range(600)))).turn


@given(st.text(max_size=5000), st.sampled_from(["system", "user", "assistant", "developer"]))
def test_any_text_is_taken(text: str, role: str) -> None:
    affinity_of(chat((role, text), ("user", text)), "t")
