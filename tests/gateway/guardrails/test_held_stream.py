"""Holding back: nothing is lost, nothing is said before it was checked, nothing hides in a seam."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.guardrails.held_stream import HeldStream

Json = dict[str, Any]
Event = tuple[int, str, str]
"""A choice, where it says something, and what."""
EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["content", "reasoning_content"]), st.text(max_size=5)), max_size=40
)


def chunk_of(index: int, **delta: Any) -> Json:
    return {"id": "c", "model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": None}]}


def said(chunks: list[Json], index: int) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(text for choice in choices for text in choice.get("delta", {}).values())


@given(EVENTS, st.integers(1, 12))
def test_without_a_finding_all_comes_out_in_its_order(events: list[Event], window_chars: int) -> None:
    held = HeldStream(window_chars=window_chars, num_choices=3)
    sent = [chunk_of(index, **{place: text}) for index, place, text in events]
    got: list[Json] = []
    for chunk in sent:
        held.add(chunk)
        if held.is_due:
            got += held.release(is_end=False)
    assert got + held.release(is_end=True) == sent


@given(EVENTS, st.integers(1, 12))
def test_every_text_is_checked_before_it_is_released_and_with_what_stood_before_it(
    events: list[Event], window_chars: int
) -> None:
    held = HeldStream(window_chars=window_chars, num_choices=3)
    checked: dict[int, list[str]] = {}
    got: list[Json] = []

    def check(*, is_end: bool) -> None:
        for each in held.texts():
            checked.setdefault(each.choice, []).append(each.text)
        got.extend(held.release(is_end=is_end))

    for index, place, text in events:
        held.add(chunk_of(index, **{place: text}))
        if held.is_due:
            check(is_end=False)
    check(is_end=True)
    for index in range(3):
        for place in ("content", "reasoning_content"):
            whole = "".join(text for each, at, text in events if (each, at) == (index, place))
            # Whatever fits into a window was seen in one piece by some check.
            for start in range(max(0, len(whole) - window_chars + 1)):
                assert any(whole[start : start + window_chars] in text for text in checked[index])


@given(EVENTS, st.integers(1, 12), st.integers(0, 2), st.integers(0, 5))
def test_a_choice_that_is_blocked_says_nothing_more_and_the_others_all(
    events: list[Event], window_chars: int, blocked: int, at_check: int
) -> None:
    held = HeldStream(window_chars=window_chars, num_choices=3)
    got: list[Json] = []
    num_checks, before = 0, None
    for index, place, text in events:
        held.add(chunk_of(index, **{place: text}))
        if held.is_due:
            is_now = num_checks == at_check and any(each.choice == blocked for each in held.texts())
            before = said(got, blocked) if is_now else before
            got += held.release([blocked] if is_now else [], is_end=False)
            num_checks += 1
    got += held.release(is_end=True)
    for index in range(3):
        whole = "".join(text for each, _, text in events if each == index)
        assert said(got, index) == (before if index == blocked and before is not None else whole)
    closing = [choice for chunk in got for choice in chunk["choices"] if choice["finish_reason"]]
    assert [choice["finish_reason"] for choice in closing] == ["content_filter"] * (before is not None)


def test_log_probabilities_after_the_last_text_wait_for_the_text_that_they_are_of() -> None:
    held = HeldStream(window_chars=1, num_choices=1)
    ahead = chunk_of(0)
    ahead["choices"][0]["logprobs"] = {"content": [{"token": "bo"}]}
    first = chunk_of(0, content="a ")
    for chunk in (first, ahead):
        held.add(chunk)
    assert held.release(is_end=False) == [first]
    held.add(chunk_of(0, content="bomb"))
    assert "bo" not in str(held.release([0], is_end=False))
    assert held.is_over
