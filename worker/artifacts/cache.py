"""A folder of fetched adapters, owned by one process. Its contents survive a restart and are then checked again.

<digest>/           adapter_config.json and adapter_model.safetensors, checked byte by byte
incoming-<random>/  being downloaded; removed at the next start, whatever happened
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from obstore.exceptions import BaseError

from protocol.artifacts import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    ArtifactFile,
    BadManifest,
    Manifest,
    artifact_name,
    decode_manifest,
    digest_of,
    object_path,
)
from protocol.object_store import first_line, open_object_store, read_object
from worker.artifacts.errors import BadArtifact, NotInStore, StoreAway

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_INCOMING = "incoming-"
_BLOCK_BYTES = 8 << 20
MAX_FETCHES = 4
"""Downloads at a time."""


class CacheError(Exception):
    """One line for the operator."""


class ArtifactCache:
    """Not thread-safe: belongs to one event loop. The caller removes what the folder has no room for, see `surplus`."""

    def __init__(self, url: str, folder: Path, *, max_bytes: int) -> None:
        """Raises BadStoreUrl, or CacheError for a folder that cannot be used or that another worker uses."""
        self._store: ObjectStore = open_object_store(url)
        self._folder = folder
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Bytes by digest, least recently used first."""
        self._unchecked: set[str] = set()
        """Digests left by an earlier process and not yet checked again."""
        self._fetches: dict[str, asyncio.Task[Path]] = {}
        self._permits = asyncio.Semaphore(MAX_FETCHES)
        self._lock = _take(folder)
        self._clean()

    def close(self) -> None:
        for fetch in self._fetches.values():
            fetch.cancel()
        os.close(self._lock)

    async def fetch(self, digest: str) -> Path:
        """The adapter's folder, complete and checked. Concurrent callers share one fetch, which goes on if all leave.

        Raises NotInStore, StoreAway or BadArtifact.
        """
        if digest in self._sizes and digest not in self._unchecked:
            self._sizes.move_to_end(digest)
            return self._folder / digest
        fetch = self._fetches.get(digest)
        if fetch is None:
            fetch = self._fetches[digest] = asyncio.create_task(self._fetch(digest))
            fetch.add_done_callback(lambda _: self._fetches.pop(digest, None))
            # If nobody waits any more, nobody else retrieves the fetch's error.
            fetch.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(fetch)

    def surplus(self) -> Iterator[str]:
        """Digests to remove until the folder is within its bound, least recently used first; never the newest."""
        excess = sum(self._sizes.values()) - self._max_bytes
        for digest, size in list(self._sizes.items())[:-1]:
            if excess <= 0:
                return
            excess -= size
            yield digest

    async def remove(self, digest: str) -> None:
        self._sizes.pop(digest, None)
        self._unchecked.discard(digest)
        await asyncio.to_thread(shutil.rmtree, self._folder / digest, ignore_errors=True)

    async def _fetch(self, digest: str) -> Path:
        folder = self._folder / digest
        if digest in self._unchecked:
            if await asyncio.to_thread(_is_intact, folder, digest):
                self._unchecked.discard(digest)
                self._sizes.move_to_end(digest)
                return folder
            await self.remove(digest)
        incoming = self._folder / f"{_INCOMING}{uuid4().hex}"
        try:
            async with self._permits:
                incoming.mkdir(mode=0o700)
                size = await self._download(digest, incoming)
                incoming.rename(folder)
        except FileNotFoundError as error:
            raise NotInStore(digest) from error
        except (BaseError, OSError, TimeoutError) as error:
            raise StoreAway(first_line(error)[:300]) from error
        except BadManifest as error:
            raise BadArtifact(str(error)) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, incoming, ignore_errors=True)
        self._sizes[digest] = size
        return folder

    async def _download(self, digest: str, incoming: Path) -> int:
        encoded = b""
        async for block in read_object(self._store, object_path(digest, MANIFEST_FILE), block_bytes=_BLOCK_BYTES):
            encoded += block
            if len(encoded) > MAX_MANIFEST_BYTES:
                raise BadManifest(f"the manifest of {digest} is too long")
        manifest = decode_manifest(encoded, digest=digest)
        if manifest.size > self._max_bytes:
            raise BadArtifact(f"it has {manifest.size} bytes, more than the {self._max_bytes} that this worker keeps")
        for name, file in manifest.files.items():
            await self._download_file(object_path(digest, name), incoming / name, file)
        (incoming / MANIFEST_FILE).write_bytes(encoded)
        return manifest.size

    async def _download_file(self, path: str, target: Path, file: ArtifactFile) -> None:
        content, size = hashlib.sha256(), 0
        with target.open("xb") as opened:
            async for block in read_object(self._store, path, block_bytes=_BLOCK_BYTES):
                size += len(block)
                if size > file.size:
                    break
                await asyncio.to_thread(content.update, block)
                await asyncio.to_thread(opened.write, block)
        if size != file.size or content.hexdigest() != file.sha256:
            raise BadArtifact(f"{path} has another content in the store than its manifest says")

    def _clean(self) -> None:
        """Removes an earlier process's unfinished downloads, and lists its adapters by modification time."""
        found = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in found:
            if path.name.startswith(_INCOMING):
                shutil.rmtree(path, ignore_errors=True)
            elif digest_of(artifact_name(path.name)) is not None and path.is_dir():
                self._sizes[path.name] = sum(file.stat().st_size for file in path.iterdir())
                self._unchecked.add(path.name)


def _take(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CacheError(f"{folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise CacheError(f"another worker uses {folder}; give each a folder of its own") from error
    return lock


def _is_intact(folder: Path, digest: str) -> bool:
    try:
        manifest: Manifest = decode_manifest((folder / MANIFEST_FILE).read_bytes(), digest=digest)
        return all(_sha256(folder / name) == file.sha256 for name, file in manifest.files.items())
    except (OSError, BadManifest):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
