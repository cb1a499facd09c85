"""`tiergate backup`, `verify-backup` and `restore`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiergate.admin.options import AsJson
from tiergate.failure import Failure

if TYPE_CHECKING:
    from tiergate.backup.manifest import Manifest

DataDir = Annotated[
    Path | None, typer.Option(help="The data directory of a `tiergate up`; default: TIERGATE_DATA_DIR.")
]
Config = Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if it exists.")]


def backup(
    target: Annotated[Path, typer.Argument(help="A new file, or a folder in which the file is named by the time.")],
    objects: Annotated[
        bool, typer.Option(help="Include adapters and files; leave them out if their store has backups of its own.")
    ] = True,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Back up the database, waiting usage, adapters and files into one file while everything runs.

    Run it where the gateway runs, with the same environment. The pepper is not in the backup: keep it elsewhere.
    ClickHouse and Kafka have backups of their own; see docs/operations.md.
    """
    from gateway.clock import utc_now
    from tiergate.backup.taking import take_backup
    from tiergate.commands.settings import settings_here
    from tiergate.progress import Progress

    settings = settings_here(config, data_dir)
    progress = Progress("bytes copied", is_shown=not as_json)
    try:
        path, manifest = take_backup(settings, target, has_objects=objects, now=utc_now(), on_progress=progress.show)
    finally:
        progress.end()
    _tell(path, manifest, as_json=as_json)


def verify_backup(
    file: Annotated[Path, typer.Argument(help="A file that `tiergate backup` wrote.")], as_json: AsJson = False
) -> None:
    """Verify that a backup is complete, and show what it contains. Needs neither a database nor the pepper."""
    from tiergate.backup.archive import verify
    from tiergate.progress import Progress

    total = _size(file)
    progress = Progress("bytes verified", total=total, is_shown=not as_json)
    try:
        manifest = verify(file, on_progress=progress.show)
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}", exit_code=1) from error
    finally:
        progress.end()
    _tell(file, manifest, as_json=as_json)


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `tiergate backup` wrote.")],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into an empty installation, completely or not at all.

    A backup of SQLite can be restored into PostgreSQL and the other way round. Needs the settings of the new
    installation and the pepper of the old one; no gateway may be running. If it was interrupted, run it again.
    """
    from gateway.clock import utc_now
    from tiergate.backup.restoring import restore
    from tiergate.commands.settings import settings_here
    from tiergate.progress import Progress

    settings = settings_here(config, data_dir)
    _size(file)
    progress = Progress("bytes restored", is_shown=not as_json)
    try:
        manifest = restore(settings, file, now=utc_now(), on_progress=progress.show)
    finally:
        progress.end()
    _tell(file, manifest, as_json=as_json)


def _size(file: Path) -> int:
    if not file.is_file():
        raise Failure(f"there is no file {file}")
    return file.stat().st_size


def _tell(path: Path, manifest: "Manifest", *, as_json: bool) -> None:
    found = {
        "file": str(path),
        "id": manifest.id,
        "taken_at": manifest.taken_at.isoformat(),
        "tiergate_version": manifest.tiergate_version,
        "revision": manifest.revision,
        "database": manifest.database,
        "num_rows": sum(manifest.rows.values()),
        "num_outboxes": len(manifest.outboxes),
        "num_waiting_events": sum(manifest.outboxes.values()),
        "num_objects": manifest.num_objects if manifest.has_objects else None,
        "missing_objects": list(manifest.missing_objects),
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    objects = f"{manifest.num_objects:,} objects" if manifest.has_objects else "no objects, as asked"
    typer.echo(
        f"{path}: {manifest.taken_at:%Y-%m-%d %H:%M:%S} UTC, {found['num_rows']:,} rows, {objects},"
        f" {found['num_waiting_events']:,} usage events that waited"
    )
    for missing in manifest.missing_objects:
        typer.echo(f"missing in the object store already then: {missing}", err=True)
