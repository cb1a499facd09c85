"""The wall clock. Code that decides by time takes `now` as an argument instead."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
