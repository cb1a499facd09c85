"""How hard a prompt looks, as a number from 0 to 1: cheap, deterministic, the same on every gateway.

Each feature is evidence between 0 and 1 that the large model is needed, and the score is their noisy-or,
`1 - product(1 - weight * evidence)`: it stays within 0..1 and more evidence never lowers it.

| feature      | weight | full evidence                                                                       |
|--------------|--------|-------------------------------------------------------------------------------------|
| length       | 0.45   | 8,000 characters in the whole conversation                                          |
| turns        | 0.70   | 8 user turns                                                                        |
| tools        | 0.75   | any tool is offered, or a tool's result stands in the conversation                  |
| arithmetic   | 0.70   | two operations in the question; a product, quotient or power counts as two          |
| mathematics  | 0.65   | a word problem with four numbers, or two mathematical terms                         |
| code         | 0.60   | a fenced block, or four signs or words of a program                                 |
| steps        | 0.65   | two phrases that ask for reasoning or for several steps                             |
| constraints  | 0.40   | four words that restrict the answer                                                 |
| schema       | 0.75   | a JSON schema, in words or in the text itself                                       |

Only the last user message and the system messages are read, at most MAX_SCANNED_CHARS of each: their head and tail.
"""

import re
from collections.abc import Sequence

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
from router.vocabulary import CODE_WORDS, CONSTRAINT_WORDS, MATH_WORDS, PRODUCT_WORDS, STEP_WORDS

DEFAULT_THRESHOLD = 0.5
MAX_SCANNED_CHARS = 4096

# Each pattern is linear: none has an unbounded repeat that may fail and begin again one character later.
_WORD = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SUM = re.compile(r"\d\s*[+\-−]\s*(?=[\d(])")
_PRODUCT = re.compile(r"\d\)?\s*(?:\*\*?|[x×/÷^])\s*(?=[\d(])|\d%")
_FORMULA_SIGN = re.compile(r"[\\=<>^∫∑√π≤≥∈]")
_FORMULA = re.compile(r"\\[a-z]+\{|\b[a-z]\s*[=<>^]\s*-?\w|\b\d+[a-z]\b\s*[=+\-]|[∫∑√π≤≥∈]")
_QUANTITY = re.compile(
    r"\bhow (?:many|much|long|far|old|fast)\b|\bwhat (?:is|was|are) the (?:total|average|difference)\b"
)
_CODE_SIGN = re.compile(r"[{};][ \t]*\n|=>|->|::|[=!]=|\(\)|#include|</\w")
_LIST_NUMBER = re.compile(r"^[ \t]*\d+[.)]\s", re.MULTILINE)
_SCHEMA_MARK = re.compile(r'"(?:properties|type|\$ref)"')


class Features(msgspec.Struct, kw_only=True, frozen=True):
    """Evidence, each from 0 to 1."""

    length: float = 0.0
    turns: float = 0.0
    tools: float = 0.0
    arithmetic: float = 0.0
    mathematics: float = 0.0
    code: float = 0.0
    steps: float = 0.0
    constraints: float = 0.0
    schema: float = 0.0


WEIGHTS = Features(
    length=0.45,
    turns=0.7,
    tools=0.75,
    arithmetic=0.7,
    mathematics=0.65,
    code=0.6,
    steps=0.65,
    constraints=0.4,
    schema=0.75,
)
_PAIRS = tuple((name, float(getattr(WEIGHTS, name))) for name in Features.__struct_fields__)


def score(features: Features) -> float:
    easy = 1.0
    for name, weight in _PAIRS:
        easy *= 1.0 - weight * getattr(features, name)
    return min(1.0, max(0.0, 1.0 - easy))


def chat_features(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Features:
    num_chars, num_user_turns, question, rules, has_result = 0, 0, "", [], False
    for message in messages:
        text = content_text(message.content)
        num_chars += len(text)
        if isinstance(message, UserMessage):
            num_user_turns, question = num_user_turns + 1, text
        elif isinstance(message, SystemMessage | DeveloperMessage):
            rules.append(text)
        elif isinstance(message, ToolMessage) or (isinstance(message, AssistantMessage) and message.tool_calls):
            has_result = True
    return _features(
        _excerpt(question),
        _excerpt("\n".join(rules)),
        num_chars=num_chars,
        num_user_turns=num_user_turns,
        has_tools=bool(tools) or has_result,
    )


def text_features(prompt: str) -> Features:
    return _features(_excerpt(prompt), "", num_chars=len(prompt), num_user_turns=1, has_tools=False)


def _features(question: str, rules: str, *, num_chars: int, num_user_turns: int, has_tools: bool) -> Features:
    text = question.lower()
    words = _WORD.findall(text)
    num_rules, has_rule_schema = _read_rules(rules) if rules else (0, False)
    num_numbers = len(_NUMBER.findall(text))
    return Features(
        length=_share(num_chars, 8000),
        turns=_share(num_user_turns - 1, 7),
        tools=float(has_tools),
        arithmetic=_arithmetic(text, words) if num_numbers > 1 else 0.0,
        mathematics=_mathematics(text, words, num_numbers=num_numbers),
        code=_code(text, words),
        steps=_steps(text, words),
        constraints=_share(_count(words, CONSTRAINT_WORDS) + num_rules, 4),
        schema=float(has_rule_schema or _has_schema(text, words)),
    )


def _read_rules(rules: str) -> tuple[int, bool]:
    """Of system messages: how many constraints, and whether there is a schema."""
    text = rules.lower()
    words = _WORD.findall(text)
    return _count(words, CONSTRAINT_WORDS), _has_schema(text, words)


def _arithmetic(text: str, words: list[str]) -> float:
    products = len(_PRODUCT.findall(text)) + _count(words, PRODUCT_WORDS)
    return _share(len(_SUM.findall(text)) + 2 * products, 2)


def _mathematics(text: str, words: list[str], *, num_numbers: int) -> float:
    terms = _count(words, MATH_WORDS)
    if _FORMULA_SIGN.search(text):
        terms += len(_FORMULA.findall(text))
    is_story = num_numbers > 1 and len(words) >= 15 and _QUANTITY.search(text) is not None
    return max(_share(terms, 2), _share(num_numbers, 4) if is_story else 0.0)


def _code(text: str, words: list[str]) -> float:
    if "```" in text:
        return 1.0
    return _share(_count(words, CODE_WORDS) + len(_CODE_SIGN.findall(text)), 4)


def _steps(text: str, words: list[str]) -> float:
    phrases = text.count("step by step") + text.count("step-by-step") + ("first" in words and "then" in words)
    return _share(_count(words, STEP_WORDS) + phrases + len(_LIST_NUMBER.findall(text)), 2)


def _has_schema(text: str, words: list[str]) -> bool:
    return "schema" in words or _SCHEMA_MARK.search(text) is not None


def _count(words: list[str], vocabulary: frozenset[str]) -> int:
    return 0 if vocabulary.isdisjoint(words) else len(list(filter(vocabulary.__contains__, words)))


def _share(count: int, full: int) -> float:
    return 0.0 if count <= 0 else min(1.0, count / full)


def _excerpt(text: str) -> str:
    """All of a short text; head and tail of a long one, where the task usually stands."""
    if len(text) <= MAX_SCANNED_CHARS:
        return text
    half = MAX_SCANNED_CHARS // 2
    return f"{text[:half]}\n{text[-half:]}"
