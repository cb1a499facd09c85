"""Requests to a hook and its answers, in the format of OpenAI's `POST /v1/moderations`."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

MAX_ANSWER_BYTES, MAX_RESULT_BYTES = 64 * 1024, 4 * 1024
"""Limit for an answer about one text, and its increase per further text; a result of OpenAI's takes about 1 KiB."""
MAX_SHOWN, MAX_CATEGORY_CHARS = 8, 64
Findings = Mapping[int, tuple[str, ...]]
"""Index of a blocked text -> its categories, as far as the hook names any."""


class BadAnswer(Exception):
    """The hook's answer cannot be relied on; the message says why."""


class _Result(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool | None] = {}


class _Answer(msgspec.Struct):
    results: list[_Result]


_ANSWER = msgspec.json.Decoder(_Answer)


def question(texts: Sequence[str], *, model: str | None) -> bytes:
    asked = {"input": texts}
    return msgspec.json.encode(asked if model is None else {"model": model, **asked})


def max_answer_bytes(num_texts: int) -> int:
    return MAX_ANSWER_BYTES + MAX_RESULT_BYTES * (num_texts - 1)


def read_answer(body: bytes, *, num_texts: int, categories: Collection[str]) -> Findings:
    """categories: those that block; empty: whatever is flagged is blocked. Raises BadAnswer."""
    try:
        results = _ANSWER.decode(body).results
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"its answer is no moderation's: {error}"[:200]) from error
    if len(results) != num_texts:
        raise BadAnswer(f"it was asked about {num_texts} texts and answered about {len(results)}")
    found: dict[int, tuple[str, ...]] = {}
    for i, result in enumerate(results):
        hit = [name for name, is_hit in result.categories.items() if is_hit and (not categories or name in categories)]
        if hit if categories else result.flagged:
            found[i] = tuple(_shown(name) for name in sorted(hit)[:MAX_SHOWN])
    return found


def _shown(category: str) -> str:
    """The hook's category, made safe for our messages."""
    return "".join(char if char.isprintable() else "?" for char in category[:MAX_CATEGORY_CHARS])
