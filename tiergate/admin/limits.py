"""Limits on the command line: `requests_per_minute=60`; `null` removes a limit, and what holds without it applies."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tiergate.failure import Failure

LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", metavar="NAME=NUMBER", help="A limit, such as concurrency=2; =null removes it; may be repeated."
    ),
]


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    return dict(map(_assignment, texts))


def _assignment(text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals:
        raise Failure(f"{text!r}: write FIELD=VALUE")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value
