"""Request bodies of the admin API, with names that every database and every page can show and nobody can fake."""

import unicodedata
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

# Control characters (Cc), direction marks and zero-width characters (Cf), surrogates (Cs), line and paragraph
# separators (Zl, Zp).
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Further characters that may be rendered as nothing: fillers, variation selectors, joiners; and the blank Braille cell.
_INVISIBLE = frozenset(
    chr(code)
    for start, end in (
        (0x034F, 0x034F),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x2065, 0x2065),
        (0x2800, 0x2800),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFFA0, 0xFFA0),
        (0xFFF0, 0xFFF8),
        (0xE0000, 0xE0FFF),
    )
    for code in range(start, end + 1)
)


class Draft(BaseModel):
    """A request body. Validation guesses nothing: `true` is not a number, and an unknown field is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _visible(name: str) -> str:
    for char in name:
        if char in _INVISIBLE or unicodedata.category(char) in _INVISIBLE_CATEGORIES:
            raise ValueError(f"must not hold characters that cannot be seen, such as U+{ord(char):04X}")
    return name


def _tidy(name: str) -> str:
    """Trim a name and normalise it to NFC, so that equivalent spellings become one. Raises ValueError."""
    name = unicodedata.normalize("NFC", _visible(name.strip()))
    if not name:
        raise ValueError("must not be blank")
    return name


def _unspaced(name: str) -> str:
    if any(char.isspace() for char in name):
        raise ValueError("must not hold spaces")
    return name


def _spaced_plainly(name: str) -> str:
    if any(char.isspace() and char != " " for char in name):
        raise ValueError("must not hold other spaces than U+0020")
    return name


def _iso_time(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("must be a string in ISO 8601 with a zone, such as 2026-01-31T12:00:00Z") from None


Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_tidy), AfterValidator(_spaced_plainly)]
"""A name of a tenant, key, tier or user: anything that can be read."""
AdapterName = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_tidy), AfterValidator(_unspaced)]
ModelId = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_tidy), AfterValidator(_unspaced)]
UserId = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_visible)]
"""The `user` of requests, taken as sent."""
WorkerName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_visible), AfterValidator(_unspaced)]
"""A worker's name for an adapter, taken as sent because the worker compares it."""
PoolName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
TierName = PoolName
"""Tier names are parts of URL paths."""
Version = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""The version of the object that an edit was based on: 409 if the object has changed since. Left out: any version."""
Id = Annotated[UUID, Field(strict=False)]
Moment = Annotated[AwareDatetime, BeforeValidator(_iso_time)]
