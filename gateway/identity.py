"""Ids of our own objects: UUIDv7, so that lists sort by age."""

from datetime import UTC, datetime
from uuid import UUID

from protocol.ids import make_uuid7


def utc_now() -> datetime:
    return datetime.now(UTC)


def new_id(now: datetime) -> UUID:
    return make_uuid7(int(now.timestamp() * 1000))
