"""The manifest of a backup, which is the last member of its archive."""

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
    """The revision of the relational database's schema."""
    database: str
    """The dialect of the database that was backed up. The backup can be restored into another one."""
    pepper_ids: tuple[str, ...]
    """The ids, in hexadecimal, of all peppers that keys may be hashed with."""
    has_objects: bool
    """False: the backup has no objects, because the object store has backups of its own."""
    rows: Mapping[str, int]
    """The number of rows of each table."""
    outboxes: Mapping[str, int]
    """For each incarnation, the number of waiting usage events and of requests under way, added up."""
    missing_objects: tuple[str, ...]
    """Paths to which rows refer, but which the object store did not have."""
    members: Mapping[str, Member]
    """All members of the archive except the manifest."""

    @property
    def num_objects(self) -> int:
        return sum(name.startswith(OBJECTS) for name in self.members)
