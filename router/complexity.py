"""Scores how hard a prompt looks, from 0 to 1. Deterministic, the same on every gateway, about 80 microseconds.

A score of 0.3 means: for three of ten prompts like this one, the large model is right and the small one is wrong.
The score comes from trained weights (`router/weights.bin`, or an operator's own). For structure that the weights cannot
judge there are minimum scores:

| structure                                            | at least        |
|------------------------------------------------------|-----------------|
| tools offered or called, an answer by a JSON schema  | STRUCTURE_SCORE |
| code, or a request for code                          | CODE_SCORE      |
| a language other than English                        | FOREIGN_SCORE   |
| a conversation of LONG_TURNS user messages or more   | LONG_SCORE      |

Only the last user message and the system messages are read, at most 4,096 characters of each: the head and the tail.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

import msgspec

from protocol.messages import (
    AssistantMessage,
    DeveloperMessage,
    Message,
    SystemMessage,
    Tool,
    ToolMessage,
    UserMessage,
    content_text,
)
from router.features import COUNT, Prompt, Reading, excerpt, read
from router.weights import Weights, read_weights

DEFAULT_THRESHOLD = 0.2
STRUCTURE_SCORE, CODE_SCORE, FOREIGN_SCORE, LONG_SCORE = 0.75, 0.5, 0.35, 0.3
LONG_TURNS = 8

_CODE_SIGNS = {
    ">": ("=>", "->"),
    ":": ("::",),
    "=": ("==",),
    "!": ("!=",),
    ")": ("()",),
    "#": ("#include",),
    "<": ("</",),
    ";": (";\n",),
    "{": ("{\n",),
    "}": ("}\n",),
}
"""Character -> signs that contain it: searching for one character is 20 times faster than for two."""
_SCHEMA_WORDS = ("json schema", "JSON schema", "JSON Schema")
_FENCE = "```"
# Runs in linear time: no unbounded repeat can fail and restart one character later.
_DECLARATION = re.compile(
    r"^\s*(?:async )?(?:def|fn|function) \w+\(|\bconst \w+ = |\bSELECT\b.{1,200}\bFROM\b|^\s*#include [<\"]|"
    r"\bpublic static \w+ \w+\(|^\s*import \w+$",
    re.MULTILINE,
)
_ENOUGH_CODE, _ENOUGH_NAMED, _FEWEST_SIGNS, _ENOUGH_FOREIGN = 3, 2, 2, 2


class Complexity(msgspec.Struct, frozen=True):
    """needs_large: tools or a schema, for which the small model is never used.

    is_uncertain: a language other than English, on which the weights were not trained.
    """

    score: float
    needs_large: bool = False
    is_uncertain: bool = False


def score_prompts(prompts: Iterable[str]) -> list[float]:
    """The score of each prompt, as if it were the only message of a conversation."""
    return [text_complexity(prompt).score for prompt in prompts]


def text_complexity(prompt: str, weights: Weights | None = None) -> Complexity:
    return complexity_of(text_prompt(prompt), weights)


def chat_complexity(
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    weights: Weights | None = None,
    is_structured: bool = False,
) -> Complexity:
    """is_structured: the request itself demands an answer that follows a schema."""
    return complexity_of(chat_prompt(messages, tools, is_structured=is_structured), weights)


def complexity_of(prompt: Prompt, weights: Weights | None = None) -> Complexity:
    """Uses the shipped weights unless others are given."""
    reading = read(prompt)
    probability, floor = (weights or shipped_weights()).probability(reading), floor_of(prompt, reading)
    return Complexity(
        score=max(probability, floor),
        needs_large=prompt.has_tools or prompt.has_schema,
        is_uncertain=floor == FOREIGN_SCORE,
    )


def unscored(prompt: Prompt) -> Complexity:
    """For a request that names its model: only whether it needs the large one."""
    return Complexity(0.0, needs_large=prompt.has_tools or prompt.has_schema)


@functools.cache
def shipped_weights() -> Weights:
    return read_weights((files("router") / "weights.bin").read_bytes())


def text_prompt(text: str) -> Prompt:
    return Prompt(text, has_schema=_has_schema(text))


def chat_prompt(messages: Sequence[Message], tools: Sequence[Tool] = (), *, is_structured: bool = False) -> Prompt:
    num_chars, num_user_turns, question, rules, has_tools = 0, 0, "", [], bool(tools)
    for message in messages:
        text = content_text(message.content)
        num_chars += len(text)
        if isinstance(message, UserMessage):
            num_user_turns, question = num_user_turns + 1, text
        elif isinstance(message, SystemMessage | DeveloperMessage):
            rules.append(text)
        elif isinstance(message, ToolMessage) or (isinstance(message, AssistantMessage) and message.tool_calls):
            has_tools = True
    all_rules = "\n".join(rules)
    return Prompt(
        question,
        rules=all_rules,
        num_chars=num_chars,
        num_user_turns=num_user_turns,
        has_tools=has_tools,
        has_schema=is_structured or _has_schema(question) or _has_schema(all_rules),
    )


def floor_of(prompt: Prompt, reading: Reading) -> float:
    """The minimum score given by structure alone; 0 if there is none."""
    if prompt.has_tools or prompt.has_schema:
        return STRUCTURE_SCORE
    if _is_code(prompt.text, reading):
        return CODE_SCORE
    if _is_foreign(reading):
        return FOREIGN_SCORE
    return LONG_SCORE if prompt.num_user_turns >= LONG_TURNS else 0.0


def _is_code(text: str, reading: Reading) -> bool:
    """Whether the text has a code fence, program signs, or enough programming words."""
    count = reading.counts.item
    named, words, declared = count(COUNT["programming"]), count(COUNT["code"]), count(COUNT["declarations"])
    if (named and named + words >= _ENOUGH_NAMED) or words >= _ENOUGH_CODE:
        return True
    read_text = excerpt(text)
    if "`" in read_text and _FENCE in read_text:
        return True
    if declared and _DECLARATION.search(read_text):
        return True
    program_signs, has_calls = count(COUNT["program_signs"]), "()" in read_text
    if program_signs + count(COUNT["operators"]) < _FEWEST_SIGNS and not has_calls:
        return False
    # Counting the signs would cost a tenth of the whole score; most prompts with arithmetic stop here.
    if not (program_signs or named or words or declared or has_calls or ">" in read_text):
        return False
    signs = sum([read_text.count(sign) for mark, signs in _CODE_SIGNS.items() if mark in read_text for sign in signs])
    if declared:
        signs += read_text.count("def ") + read_text.count("const ")
    return words + signs >= _ENOUGH_CODE


def _is_foreign(reading: Reading) -> bool:
    """Whether the text is in another script, or has more words of other languages than of English."""
    count = reading.counts.item
    num_beyond, foreign = count(COUNT["beyond_ascii"]), count(COUNT["foreign"])
    if num_beyond >= 8 and num_beyond > reading.words.lengths.sum() / 6:
        return True
    return foreign >= _ENOUGH_FOREIGN and foreign > count(COUNT["english"])


def _has_schema(text: str) -> bool:
    read_text = excerpt(text)
    if '"' in read_text and ('"properties"' in read_text or ("$" in read_text and '"$ref"' in read_text)):
        return True
    # All schema words contain `chema`, so most texts are ruled out by one search.
    return "chema" in read_text and any(words in read_text for words in _SCHEMA_WORDS)
