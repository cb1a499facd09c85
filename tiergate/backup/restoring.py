"""Restores a backup into an empty installation, completely or not at all.

All rows are written in one database transaction. Outboxes wait in a folder that no consumer reads, and go live after
the commit. Until they do, no gateway starts here, and the same restore can be run again.
"""

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from obstore.exceptions import BaseError
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from gateway.database import make_engine
from gateway.domain.audit.writing import NewEntry, append
from gateway.metering.folders import restoring_folder
from gateway.peppers import id_of
from gateway.settings import GatewaySettings
from migrations.run import migrate_within
from protocol.object_store import open_object_store
from tiergate.backup import schema
from tiergate.backup.archive import read_members, verify
from tiergate.backup.failures import telling_failures
from tiergate.backup.manifest import OBJECTS, OUTBOXES, TABLES, Manifest
from tiergate.backup.objects import put_object
from tiergate.backup.outboxes import check_no_gateway, check_no_outbox, make_live, place_outbox
from tiergate.backup.rows import load_rows
from tiergate.failure import Failure
from tiergate.up.data_dir import owned

if TYPE_CHECKING:
    from obstore.store import ObjectStore


def restore(settings: GatewaySettings, path: Path, *, now: datetime, on_progress: Callable[[int], None]) -> Manifest:
    """Raises Failure; then the installation is unchanged, or the same restore has to be run again."""
    with telling_failures():
        manifest = verify(path)
        schema.check_known(manifest.revision, version=manifest.tiergate_version)
        if not set(manifest.pepper_ids) <= {id_of(pepper).hex() for pepper in settings.peppers.all}:
            raise Failure(
                "TIERGATE_KEY_PEPPER is not the pepper of the backup, so that its keys would not work; set the one that"
                " the installation had (beside a newer one: in TIERGATE_OLD_KEY_PEPPERS)"
            )
        with owned(settings.data_dir):
            restoring = _Restoring(settings, path, manifest, now=now, on_progress=on_progress)
            asyncio.run(restoring.run())
            make_live(settings.data_dir)
    return manifest


class _Restoring:
    def __init__(
        self,
        settings: GatewaySettings,
        path: Path,
        manifest: Manifest,
        *,
        now: datetime,
        on_progress: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._path = path
        self._manifest = manifest
        self._now = now
        self._on_progress = on_progress
        self._placed = restoring_folder(settings.data_dir)
        self._was_cut = self._placed.exists()
        self._store: ObjectStore | None = open_object_store(settings.store_url) if manifest.num_objects else None
        self._made: list[str] = []
        """Objects that this restore has created, to be deleted if it fails."""

    async def run(self) -> None:
        engine = make_engine(self._settings.sql_url)
        try:
            async with engine.connect() as connection:
                await connection.run_sync(schema.begin_exclusive)
                is_restored = await connection.run_sync(self._look)
                self._empty_placed()
                if is_restored:
                    self._read(None)
                else:
                    await self._restore(connection)
        finally:
            await engine.dispose()

    async def _restore(self, connection: AsyncConnection) -> None:
        try:
            await connection.run_sync(self._fill)
            await self._note(connection)
            check_no_gateway(self._settings.data_dir)
        except BaseException:
            await connection.rollback()
            self._take_back()
            raise
        try:
            await connection.commit()
        except SQLAlchemyError:
            await connection.invalidate()
            if not await self._may_stand(connection.engine):
                self._take_back()
            raise

    async def _may_stand(self, engine: AsyncEngine) -> bool:
        """Whether a commit that failed may have taken effect: perhaps only its answer was lost."""
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(schema.is_restored, self._manifest.id)
        except (SQLAlchemyError, OSError):
            return True

    def _look(self, connection: Connection) -> bool:
        """Whether a restore of this backup was interrupted after its commit.

        Raises Failure if the installation is in use or not empty, or if the backup was restored already.
        """
        data_dir = self._settings.data_dir
        check_no_gateway(data_dir)
        is_restored = schema.is_restored(connection, self._manifest.id)
        if is_restored and not self._was_cut:
            raise Failure("this backup was restored here already; there is nothing to do")
        check_no_outbox(data_dir, but=self._manifest.outboxes if is_restored else ())
        if not is_restored:
            schema.check_empty(connection)
        return is_restored

    def _fill(self, connection: Connection) -> None:
        schema.make_schema(connection, self._manifest.revision)
        with schema.without_triggers(connection):
            self._read(connection)
        migrate_within(connection)

    def _read(self, connection: Connection | None) -> None:
        """Read all members. Without a connection the rows are skipped, since the database already has them."""
        rows: Counter[str] = Counter()
        num_bytes = 0
        for name, size, content in read_members(self._path):
            if name.startswith(TABLES) and connection is not None:
                rows[name.split("/")[1]] += load_rows(connection, name, content)
            elif name.startswith(OUTBOXES):
                place_outbox(self._settings.data_dir, name, content)
            elif name.startswith(OBJECTS):
                self._put(name, size, content)
            num_bytes += size
            self._on_progress(num_bytes)
        if connection is not None and any(rows[table] != number for table, number in self._manifest.rows.items()):
            raise Failure(f"{self._path} holds other rows than its manifest says; take another one")

    def _put(self, name: str, size: int, content: IO[bytes]) -> None:
        assert self._store is not None
        made = put_object(self._store, name, size, content)
        if made is not None:
            self._made.append(made)

    async def _note(self, connection: AsyncConnection) -> None:
        manifest = self._manifest
        detail = {"taken_at": manifest.taken_at.isoformat(), "tiergate_version": manifest.tiergate_version}
        entry = NewEntry(self._now, None, None, schema.RESTORED, manifest.id, detail=detail)
        async with AsyncSession(connection, info={"peppers": self._settings.peppers}) as session:
            await append(session, [entry])
            await session.flush()

    def _empty_placed(self) -> None:
        if self._was_cut:
            shutil.rmtree(self._placed)
        self._placed.mkdir(mode=0o700)

    def _take_back(self) -> None:
        """Undo what a rollback does not: remove the placed outboxes and the created objects."""
        shutil.rmtree(self._placed, ignore_errors=True)
        if self._made:
            assert self._store is not None
            with contextlib.suppress(BaseError, OSError):
                self._store.delete(self._made)
