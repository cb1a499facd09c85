"""The object store of adapters. Uploads are checked as they stream there, and become artifacts only if all is well.

uploads/<time and random>           in progress; removed when refused or cut off
adapters/<ab>/<digest>/...          weights, config and, written last, the manifest
"""

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from obstore.exceptions import BaseError

from gateway.artifacts.blocks import in_blocks
from gateway.artifacts.layout import Layout
from gateway.artifacts.refusal import BadAdapter
from gateway.artifacts.unfinished import UnfinishedUploads
from gateway.artifacts.weights_check import WeightsCheck
from gateway.clock import utc_now
from gateway.http.errors import GatewayError, Unavailable
from protocol.artifacts import (
    CONFIG_FILE,
    MANIFEST_FILE,
    WEIGHTS_FILE,
    ArtifactFile,
    Manifest,
    encode_manifest,
    object_path,
)
from protocol.ids import new_id
from protocol.object_store import exists, first_line, local_folder, open_object_store
from protocol.peft_config import BadLoraConfig, LoraConfig, read_config

if TYPE_CHECKING:
    from obstore.store import ObjectStore

MAX_WEIGHTS_BYTES = 2 << 30
BLOCK_BYTES = 4 << 20
PART_BYTES = 8 << 20
MAX_PARTS_AT_ONCE = 2
UPLOADS = "uploads"
MAX_UPLOADS, MAX_UPLOADS_OF_ONE = 16, 4
"""Concurrent uploads in this process, and of one tenant."""
ABANDONED = timedelta(hours=6)
"""An upload that is older belongs to a gateway that died."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A checked and complete upload that is not an artifact yet."""

    digest: str
    size_bytes: int
    layout: Layout
    path: str
    config: bytes
    manifest: bytes


class ArtifactStore:
    """Every method raises Unavailable while the store is away."""

    def __init__(self, url: str, *, max_weights_bytes: int = MAX_WEIGHTS_BYTES) -> None:
        """Raises BadStoreUrl."""
        self._store: ObjectStore = open_object_store(url)
        self._folder = local_folder(url)
        self._unfinished = UnfinishedUploads(url, UPLOADS) if self._folder is None else None
        self._uploads: Counter[UUID] = Counter()
        self.max_weights_bytes = max_weights_bytes

    @contextmanager
    def permit(self, tenant_id: UUID) -> Iterator[None]:
        """Take one of the slots for concurrent uploads, since each upload takes tens of megabytes. Raises Unavailable
        if none is free."""
        if self._uploads[tenant_id] >= MAX_UPLOADS_OF_ONE or self._uploads.total() >= MAX_UPLOADS:
            raise Unavailable(
                "too many uploads are under way; send it again when one is through",
                retry_after_s=5,
                code="too_many_uploads",
            )
        self._uploads[tenant_id] += 1
        try:
            yield
        finally:
            self._uploads[tenant_id] -= 1
            self._uploads = +self._uploads

    @asynccontextmanager
    async def staging(self, config: bytes, weights: AsyncIterable[bytes]) -> AsyncIterator[Staged]:
        """Stream `weights` to the store, checking them. On exit the upload is removed; `publish` copies it before.
        Raises BadAdapter, and the errors of `weights`."""
        lora = _read_config(config)
        check = WeightsCheck(lora, max_bytes=self.max_weights_bytes)
        digest, path = hashlib.sha256(), f"{UPLOADS}/{new_id(utc_now())}"
        size = 0

        async def checked() -> AsyncIterator[bytes]:
            nonlocal size
            async for block in in_blocks(weights, BLOCK_BYTES):
                size += len(block)
                if size > self.max_weights_bytes:
                    raise BadAdapter(f"{WEIGHTS_FILE}: more than {self.max_weights_bytes} bytes", param="weights")
                # In a thread: arithmetic on megabytes would hold up every stream of this process.
                await asyncio.to_thread(_note, block, digest, check)
                yield block

        async with _telling_outages():
            # An error of the iterator aborts the upload to the store, too.
            await self._store.put_async(path, checked(), chunk_size=PART_BYTES, max_concurrency=MAX_PARTS_AT_ONCE)
        try:
            layout = check.finish()
            files = {
                CONFIG_FILE: ArtifactFile(hashlib.sha256(config).hexdigest(), len(config)),
                WEIGHTS_FILE: ArtifactFile(digest.hexdigest(), size),
            }
            name, manifest = encode_manifest(Manifest(files))
            yield Staged(name, size + len(config), layout, path, config, manifest)
        finally:
            await self._remove_upload(path)

    async def publish(self, staged: Staged) -> None:
        """Once this returns, workers can fetch the artifact. Publishing the same content again changes nothing."""
        async with _telling_outages():
            await self._store.copy_async(staged.path, object_path(staged.digest, WEIGHTS_FILE))
            await self._store.put_async(object_path(staged.digest, CONFIG_FILE), staged.config)
            await self._store.put_async(object_path(staged.digest, MANIFEST_FILE), staged.manifest)

    async def has(self, digest: str) -> bool:
        """Whether any file of the artifact exists."""
        async with _telling_outages():
            files = (MANIFEST_FILE, CONFIG_FILE, WEIGHTS_FILE)
            return any([await exists(self._store, object_path(digest, file)) for file in files])

    async def remove(self, digest: str) -> None:
        """The manifest goes first: from then on no worker begins to fetch the artifact."""
        for file in (MANIFEST_FILE, CONFIG_FILE, WEIGHTS_FILE):
            await self._delete(object_path(digest, file))

    async def remove_abandoned(self, *, now: datetime) -> None:
        """Remove uploads of gateways that died."""
        async with _telling_outages():
            found = await self._store.list(f"{UPLOADS}/").collect_async()
        for entry in found:
            if entry["last_modified"] < now - ABANDONED:
                await self._delete(entry["path"])
        if self._folder is not None:
            # In a local folder, half-written files have names that the library does not list.
            await asyncio.to_thread(_unlink_older, self._folder / UPLOADS, now - ABANDONED)
        if self._unfinished is not None:
            async with _telling_outages():
                await asyncio.to_thread(self._unfinished.abort_older, now - ABANDONED)

    async def _remove_upload(self, path: str) -> None:
        """If the store has gone away meanwhile, `remove_abandoned` finds the upload later."""
        try:
            await self._delete(path)
        except Unavailable:
            return

    async def _delete(self, path: str) -> None:
        async with _telling_outages():
            try:
                await self._store.delete_async(path)
            except FileNotFoundError:
                return


def _read_config(content: bytes) -> LoraConfig:
    try:
        return read_config(content)
    except BadLoraConfig as error:
        raise BadAdapter(f"{CONFIG_FILE}: {error}", param="config") from error


def _unlink_older(folder: Path, limit: datetime) -> None:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < limit.timestamp():
                path.unlink()


def _note(block: bytes, digest: "hashlib._Hash", check: WeightsCheck) -> None:
    digest.update(block)
    check.feed(block)


@asynccontextmanager
async def _telling_outages() -> AsyncIterator[None]:
    try:
        yield
    except GatewayError:
        raise
    except (BaseError, OSError, TimeoutError) as error:
        raise Unavailable(
            f"the object store of adapters does not answer as it should: {first_line(error)[:300]}",
            retry_after_s=5,
            code="object_store_unavailable",
        ) from error
