"""Typed text, in the form that drafts of the admin API take. Text that is no number stays text, so that the draft's
validation names the field and the reason. Empty text becomes null."""

import re

from gateway.dashboard.amounts import typed_nanousd
from gateway.http.errors import InvalidRequest

_WHOLE = re.compile(r"[+-]?\d{1,3}(?:[ ,_]\d{3})+|[+-]?\d+", re.ASCII)
_DECIMAL = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?", re.ASCII)
_MAX_DIGITS = 24


def whole(text: str) -> int | str | None:
    """Takes 5000, 5,000, 5 000 or 5_000."""
    if not text:
        return None
    is_whole = len(text) <= _MAX_DIGITS and _WHOLE.fullmatch(text)
    return int(re.sub(r"[ ,_]", "", text)) if is_whole else text


def decimal(text: str) -> float | str | None:
    if not text:
        return None
    return float(text) if _DECIMAL.fullmatch(text) else text


def nanousd(text: str) -> int | str | None:
    """Nano-dollars for typed dollars."""
    if not text:
        return None
    try:
        return typed_nanousd(text, param="")
    except InvalidRequest:
        return text
