"""Which usage events may become rows: one check for events from an outbox and from Kafka."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from protocol.usage import READABLE_VERSIONS, UsageEvent

FUTURE = timedelta(days=1)
"""Clocks differ by seconds; a clock that is ahead by a day is wrong."""
_INT_RANGES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("prompt_tokens", "cached_prompt_tokens", "completion_tokens"), (0, 2**64 - 1)),
    "cost_nanousd": (-(2**63), 2**63 - 1),
    "num_attempts": (0, 2**16 - 1),
}
_decode = msgspec.json.Decoder(UsageEvent).decode


class InvalidEvent(Exception):
    """An event that can never become a row. `kind` is one of a few words, used as a metric label."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}"[:500])
        self.kind = kind


def parse_event(encoded: bytes, *, now: datetime) -> UsageEvent:
    """Raises InvalidEvent."""
    try:
        event = _decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidEvent("undecodable", str(error)) from error
    check_event(event, now=now)
    return event


def check_event(event: UsageEvent, *, now: datetime) -> None:
    """Raises InvalidEvent for values that the columns cannot hold or that cannot be true."""
    if event.schema_version not in READABLE_VERSIONS:
        raise InvalidEvent("schema_version", f"schema_version is {event.schema_version}")
    for name, (least, most) in _INT_RANGES.items():
        if not least <= getattr(event, name) <= most:
            raise InvalidEvent("out_of_range", f"{name} is {getattr(event, name)}")
    if not event.tenant_id or not event.request_id:
        raise InvalidEvent("unnamed", "no tenant_id or no request_id")
    if event.timestamp.tzinfo is None:
        raise InvalidEvent("timestamp", "timestamp has no time zone")
    if event.timestamp > now + FUTURE:
        raise InvalidEvent("future", f"timestamp is {event.timestamp.isoformat()}")
