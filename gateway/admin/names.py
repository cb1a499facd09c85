"""Bodies of the admin API, and the names in them: what every database and every page can show, and nobody can fake."""

import unicodedata
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

# Control characters, directions and zero width (Cf), halves of surrogate pairs, line and paragraph separators.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Further characters that Unicode lets a page show as nothing: fillers, selectors, joiners; and the empty Braille cell.
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
    """A body that is sent to us: nothing is guessed, so that `true` is no number and a mistyped field is told."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _visible(name: str) -> str:
    for char in name:
        if char in _INVISIBLE or unicodedata.category(char) in _INVISIBLE_CATEGORIES:
            raise ValueError(f"must not hold characters that cannot be seen, such as U+{ord(char):04X}")
    return name


def _tidy(name: str) -> str:
    """Trimmed, and in the one form (NFC) of names that look the same."""
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
"""Of tenants, keys, tiers and users: anything that can be read."""
AdapterName = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_tidy), AfterValidator(_unspaced)]
ModelId = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_tidy), AfterValidator(_unspaced)]
UserId = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_visible)]
"""What requests have as `user`: taken as it is."""
WorkerName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_visible), AfterValidator(_unspaced)]
"""What a worker calls an adapter: taken as it is, because the worker compares it."""
PoolName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
TierName = PoolName
"""It stands in paths."""
Version = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Of the object that an edit was made on: 409 where it has been changed since. Left out: of whatever is there."""
Id = Annotated[UUID, Field(strict=False)]
Moment = Annotated[AwareDatetime, BeforeValidator(_iso_time)]
