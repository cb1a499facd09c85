import time
import timeit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import AssistantMessage, FunctionDefinition, Message, SystemMessage, Tool, UserMessage
from router.complexity import DEFAULT_THRESHOLD, MAX_SCANNED_CHARS, Features, chat_features, score, text_features

WEATHER = Tool(function=FunctionDefinition(name="get_weather", parameters={"type": "object", "properties": {}}))


def score_of(prompt: str, *tools: Tool) -> float:
    return score(chat_features([UserMessage(content=prompt)], tools))


@pytest.mark.parametrize(
    "prompt",
    [
        "Hello!",
        "How are you today?",
        "What is the capital of France?",
        "Spell the word 'banana'.",
        "Reverse the word 'stone'.",
        "What is 17 + 25?",
        "How many meters are in 3 kilometers?",
        "Who wrote Hamlet?",
        "Translate 'good morning' into French.",
        "Give me the name and the date as JSON: On 3 May, Ada bought a lamp for $12.",
        "What time is it in a 24-hour clock at 3 pm?",
    ],
)
def test_small_talk_facts_and_spelling_are_simple(prompt: str) -> None:
    assert score_of(prompt) < DEFAULT_THRESHOLD


@pytest.mark.parametrize(
    "prompt",
    [
        "What is 23 * 14?",
        "What is 12 + 7 * 3 - 5?",
        "Calculate 4 + 5 - 3 + 20.",
        "Josh buys a house for $80,000 and puts in $50,000 in repairs. This increased the value of the house by "
        "150%. How much profit did he make in 2 years?",
        'Answer in JSON by this schema: {"type": "object", "properties": {"age": {"type": "integer"}}}\nAda is 36.',
        "Prove that the square root of 2 is irrational, step by step.",
        "Why does this deadlock?\n```python\nwith a:\n    with b: pass\n```",
        "Compare optimistic and pessimistic locking, explain the tradeoffs and recommend one for a ticket shop.",
    ],
)
def test_sums_of_several_steps_schemas_code_and_reasoning_are_complex(prompt: str) -> None:
    assert score_of(prompt) >= DEFAULT_THRESHOLD


def test_an_offered_tool_makes_a_prompt_complex() -> None:
    question = "What is the weather in Rome?"
    assert score_of(question) < DEFAULT_THRESHOLD <= score_of(question, WEATHER)


def test_a_schema_in_the_system_prompt_counts() -> None:
    rules = SystemMessage(content='Follow the schema {"type": "object"}')
    assert score(chat_features([rules, UserMessage(content="Ada is 36.")])) >= DEFAULT_THRESHOLD


def test_a_long_conversation_is_complex_whatever_its_last_question() -> None:
    turn: list[Message] = [UserMessage(content="Hi, I am Ada."), AssistantMessage(content="Hello Ada!")]
    question = UserMessage(content="What is my name?")
    assert score(chat_features([*turn, question])) < DEFAULT_THRESHOLD
    assert score(chat_features([*turn * 12, question])) >= DEFAULT_THRESHOLD


shares = st.floats(0, 1)
features = st.builds(Features, **dict.fromkeys(Features.__struct_fields__, shares))


@given(features, st.sampled_from(Features.__struct_fields__), shares)
def test_more_evidence_never_lowers_the_score(base: Features, name: str, more: float) -> None:
    raised = msgspec.structs.replace(base, **{name: max(getattr(base, name), more)})
    assert 0 <= score(base) <= score(raised) <= 1


@given(st.text())
def test_any_text_has_features_within_0_and_1(prompt: str) -> None:
    found = text_features(prompt)
    assert all(0 <= share <= 1 for share in msgspec.structs.astuple(found))
    assert found == text_features(prompt)


@given(st.text("ab3+*={ }\n", max_size=300), st.integers(0, 4000))
def test_a_longer_conversation_never_scores_lower(question: str, extra: int) -> None:
    history: list[Message] = [AssistantMessage(content="x" * extra)]
    base: list[Message] = [UserMessage(content=question)]
    assert score(chat_features(base)) <= score(chat_features([*history, *base]))


@given(st.text(max_size=40), st.text(max_size=40))
def test_of_a_long_text_only_head_and_tail_are_read(head: str, tail: str) -> None:
    def padded(filler: str) -> str:
        return head + " " + filler * MAX_SCANNED_CHARS + " " + tail

    middle = padded("x ")
    half = len(middle) // 2
    marked = middle[:half] + " 3 * 4 * 5 schema ``` " + middle[half:]
    assert text_features(marked) == text_features(middle)


@pytest.mark.parametrize("unit", ["select ", "first ", "1+", "; ", "1 ", "a=", "\\a", '"type', "step ", "\n1."])
def test_time_grows_at_most_linearly(unit: str) -> None:
    """Four times the text may take four times as long; a quadratic pattern would take sixteen."""
    short, long = unit * (800 // len(unit)), unit * (3200 // len(unit))
    # The time that this process computes: others may compute at the same time.
    seconds = [
        min(timeit.repeat(lambda: text_features(each), timer=time.process_time, number=5, repeat=7))  # noqa: B023
        for each in (short, long)
    ]
    assert seconds[1] < 10 * seconds[0]
