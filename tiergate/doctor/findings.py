from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """`name` is for scripts and never changes.

    severity: an error is something that does not work; a warning, something that may fail or be lost later.
    """

    name: str
    severity: Literal["error", "warning"]
    what: str
    todo: str


def error(name: str, what: str, todo: str) -> Finding:
    return Finding(name, "error", what, todo)


def warning(name: str, what: str, todo: str) -> Finding:
    return Finding(name, "warning", what, todo)


def one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:300] or type(problem).__name__
