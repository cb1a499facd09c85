"""Limits and their scopes: a tenant and, within it, keys and end users."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Limits(Protocol):
    """The limits of one scope; None means no limit. A tier satisfies this protocol."""

    @property
    def requests_per_minute(self) -> int | None: ...
    @property
    def tokens_per_minute(self) -> int | None: ...
    @property
    def concurrency(self) -> int | None: ...
    @property
    def tokens_per_day(self) -> int | None: ...
    @property
    def budget_nanousd_per_month(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class ScopeLimits:
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    tokens_per_day: int | None = None
    budget_nanousd_per_month: int | None = None


@dataclass(frozen=True, slots=True)
class LimitScope:
    """A scope within a tenant that has limits of its own: `key:ID` or `user:ID`."""

    name: str
    limits: Limits


_NAMES = tuple(ScopeLimits.__dataclass_fields__)
_NONE = ScopeLimits()


def scope_limits(stored: Mapping[str, int] | None) -> ScopeLimits | None:
    """Those of a row's stored limits that are counted in a scope of its own; None if there are none."""
    if not stored:
        return None
    found = ScopeLimits(**{name: stored[name] for name in _NAMES if name in stored})
    return None if found == _NONE else found


def changed_limits(stored: Mapping[str, int] | None, changes: Mapping[str, int | None] | None) -> dict[str, int] | None:
    """A row's limits after a PATCH: a number sets a limit, null removes it, and null for `changes` removes all."""
    merged = {} if changes is None else {**(stored or {}), **changes}
    return {name: value for name, value in merged.items() if value is not None} or None
