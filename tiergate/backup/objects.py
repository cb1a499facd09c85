"""Objects in the object store to which rows refer: adapters' files, and the files of tenants and batches."""

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from sqlalchemy import Connection, select

from gateway.artifacts.files import file_path
from gateway.domain.adapters.models import Artifact
from gateway.domain.files.models import StoredFile
from protocol.artifacts import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, object_path
from tiergate.backup.archive import ArchiveWriter
from tiergate.backup.manifest import OBJECTS
from tiergate.failure import Failure

if TYPE_CHECKING:
    from obstore.store import ObjectStore

BLOCK_BYTES = 4 << 20
_PART_BYTES = 8 << 20
_ROOTS = ("adapters", "files")


def referenced_paths(connection: Connection) -> list[str]:
    artifacts = connection.scalars(select(Artifact.digest).where(~Artifact.is_leaving).order_by(Artifact.digest))
    # The manifest last, as the artifact store writes it: a reader that sees the manifest finds the other files.
    paths = [object_path(digest, file) for digest in artifacts for file in (WEIGHTS_FILE, CONFIG_FILE, MANIFEST_FILE)]
    files = connection.execute(
        select(StoredFile.digest, StoredFile.id).where(StoredFile.is_ready).order_by(StoredFile.id)
    )
    return paths + [file_path(digest, file_id) for digest, file_id in files]


def dump_object(store: "ObjectStore", path: str, archive: ArchiveWriter) -> bool:
    """Add the object to the archive. False: the store does not have it."""
    try:
        size = store.head(path)["size"]
    except FileNotFoundError:
        return False
    try:
        archive.add(f"{OBJECTS}{path}", size, _ranges(store, path, size))
    except FileNotFoundError as error:
        raise Failure(f"{path} was removed while it was copied; take the backup again", exit_code=1) from error
    return True


def put_object(store: "ObjectStore", member: str, size: int, content: IO[bytes]) -> str | None:
    """Write the object, and return its path if it did not exist before.

    An existing object is replaced: it either has this content or is damaged.
    """
    path = member.removeprefix(OBJECTS)
    parts = path.split("/")
    if parts[0] not in _ROOTS or any(part in ("", ".", "..") for part in parts):
        raise Failure(f"{member} is no object of ours; the backup was not written by tiergate")
    try:
        store.head(path)
        was_there = True
    except FileNotFoundError:
        was_there = False
    if size <= _PART_BYTES:
        store.put(path, content.read())
    else:
        store.put(path, _blocks(content), chunk_size=_PART_BYTES, max_concurrency=2)
    return None if was_there else path


def _ranges(store: "ObjectStore", path: str, size: int) -> Iterator[bytes]:
    for start in range(0, size, BLOCK_BYTES):
        yield bytes(store.get_range(path, start=start, end=min(size, start + BLOCK_BYTES)))


def _blocks(content: IO[bytes]) -> Iterator[bytes]:
    while block := content.read(BLOCK_BYTES):
        yield block
