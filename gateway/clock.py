"""The wall clock. Code that decides by time takes `now` as an argument instead."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)


def ms_between(began_s: float, ended_s: float) -> float:
    """In whole microseconds: digits below that mean nothing, and events would be longer by them."""
    return int((ended_s - began_s) * 1e6 + 0.5) / 1000
