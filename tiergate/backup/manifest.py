"""What a backup says about itself: the last member of its archive."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

MANIFEST = "manifest.json"
TABLES, OUTBOXES, OBJECTS = "tables/", "outboxes/", "objects/"


class Member(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    taken_at: datetime
    tiergate_version: str
    revision: str
    """Of the relational database's schema."""
    database: str
    """The dialect it was taken from, which it need not be restored into."""
    pepper_ids: tuple[str, ...]
    """Of all that keys may be hashed with, as hexadecimal digits."""
    has_objects: bool
    """False: the object store was left to its own backups."""
    rows: Mapping[str, int]
    """By table."""
    outboxes: Mapping[str, int]
    """By incarnation: usage events that waited, and requests that were under way."""
    missing_objects: tuple[str, ...]
    """Paths that rows name, of which the store had nothing."""
    members: Mapping[str, Member]
    """All others of the archive."""

    @property
    def num_objects(self) -> int:
        return sum(name.startswith(OBJECTS) for name in self.members)
