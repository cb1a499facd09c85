"""A bound on the repetitions that an automaton for a regular expression may have to count."""

import re

from worker.guided.errors import BadGrammar

MAX_WEIGHT = 20_000
"""Within this limit, the first token takes about 20 ms."""
_COUNT = re.compile(r"\{(\d{1,9})?(?:,(\d{1,9})?)?\}")


def check_weight(pattern: str, place: str) -> None:
    """Raises BadGrammar."""
    if weight(pattern) > MAX_WEIGHT:
        raise BadGrammar(f"{place}: its repetitions, written out, are more than {MAX_WEIGHT} characters")


def weight(pattern: str) -> int:
    """About the number of positions in the pattern with repetitions written out. Takes any text, never raises."""
    # For each open group: the weight of its earlier atoms, and that of its last atom, which a repetition multiplies.
    groups = [[0, 0]]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        count = _COUNT.match(pattern, at) if char == "{" else None
        if char == "[":
            at = _class_end(pattern, at)
            _add(groups[-1], 1)
        elif char == "(":
            groups.append([0, 0])
        elif char == ")" and len(groups) > 1:
            closed, last = groups.pop()
            _add(groups[-1], closed + last)
        elif count is not None and count.group() != "{}":
            groups[-1][1] *= int(count[2] or count[1] or 1)
            at = count.end() - 1
        else:
            at += char == "\\"
            _add(groups[-1], 1)
        at += 1
    return sum(map(sum, groups))


def _add(group: list[int], atom: int) -> None:
    group[0] += group[1]
    group[1] = atom


def _class_end(pattern: str, at: int) -> int:
    """Where the character class that begins at `at` ends."""
    end = at + 1
    while end < len(pattern) and (pattern[end] != "]" or end == at + 1):
        end += 2 if pattern[end] == "\\" else 1
    return end
