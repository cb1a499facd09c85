"""Takes a backup of an installation that may be running."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from gateway.database import check_exists, make_engine
from gateway.domain.tables import Base
from gateway.peppers import id_of
from gateway.settings import GatewaySettings
from protocol.ids import new_id
from protocol.object_store import open_object_store
from tiergate.backup.archive import ArchiveWriter
from tiergate.backup.failures import telling_failures
from tiergate.backup.manifest import Manifest
from tiergate.backup.objects import dump_object, referenced_paths
from tiergate.backup.outboxes import dump_outboxes
from tiergate.backup.rows import dump_table
from tiergate.backup.schema import begin_snapshot, check_newest, check_peppers
from tiergate.failure import Failure

if TYPE_CHECKING:
    from obstore.store import ObjectStore

OnProgress = Callable[[int], None]


def take_backup(
    settings: GatewaySettings, target: Path, *, has_objects: bool, now: datetime, on_progress: OnProgress
) -> tuple[Path, Manifest]:
    """The file, of mode 0600, and its manifest. The file appears only once it is complete. Raises Failure.

    target: a file that does not exist yet, or a folder, in which the file is named after the time.
    """
    path = target / f"tiergate-{now:%Y-%m-%dT%H-%M-%SZ}.tar.zst" if target.is_dir() else target
    if path.exists():
        raise Failure(f"{path} is there already; give another name, or a folder")
    if not path.parent.is_dir():
        raise Failure(f"there is no folder {path.parent}; make it, or give another one")
    with telling_failures(), tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as drafts:
        check_exists(settings.sql_url)
        draft = Path(drafts) / "backup"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            taking = _Taking(
                settings, ArchiveWriter(file), Path(drafts), has_objects=has_objects, on_progress=on_progress
            )
            manifest = asyncio.run(taking.run(now))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    return path, manifest


class _Taking:
    def __init__(
        self,
        settings: GatewaySettings,
        archive: ArchiveWriter,
        drafts: Path,
        *,
        has_objects: bool,
        on_progress: OnProgress,
    ) -> None:
        self._settings = settings
        self._archive = archive
        self._drafts = drafts
        self._store: ObjectStore | None = open_object_store(settings.store_url) if has_objects else None
        self._on_progress = on_progress

    async def run(self, now: datetime) -> Manifest:
        engine = make_engine(self._settings.sql_url)
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(self._take, now)
        finally:
            await engine.dispose()

    def _take(self, connection: Connection, now: datetime) -> Manifest:
        begin_snapshot(connection)
        revision = check_newest(connection)
        check_peppers(connection, self._settings.peppers)
        rows = {}
        for table in Base.metadata.sorted_tables:
            rows[str(table.name)] = dump_table(connection, table, self._archive)
            self._tell()
        # After the snapshot began, so that what moves from the database to an outbox is in the backup at least once.
        outboxes = dump_outboxes(self._settings.data_dir, self._archive, self._drafts)
        missing = tuple(path for path in referenced_paths(connection) if not self._dump_object(path))
        manifest = Manifest(
            id=str(new_id(now)),
            taken_at=now,
            tiergate_version=version("tiergate"),
            revision=revision,
            database=connection.dialect.name,
            pepper_ids=tuple(id_of(pepper).hex() for pepper in self._settings.peppers.all),
            has_objects=self._store is not None,
            rows=rows,
            outboxes=outboxes,
            missing_objects=missing,
            members=self._archive.members,
        )
        self._archive.finish(manifest)
        return manifest

    def _dump_object(self, path: str) -> bool:
        self._tell()
        return self._store is None or dump_object(self._store, path, self._archive)

    def _tell(self) -> None:
        self._on_progress(sum(member.size for member in self._archive.members.values()))
