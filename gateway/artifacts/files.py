"""The object store of files that tenants upload and batches write.

uploads/<random>            in progress; `ArtifactStore.remove_abandoned` finds uploads that were cut off
files/<digest>/<id>         by content, and a copy per file, so that one can be removed without asking who else has it
"""

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from obstore.exceptions import BaseError

from gateway.artifacts.blocks import in_blocks
from gateway.http.errors import GatewayError, InvalidRequest, NotFound, Unavailable
from protocol.object_store import exists, first_line, open_object_store, read_object

if TYPE_CHECKING:
    from obstore.store import ObjectStore

BLOCK_BYTES = 1 << 20
PART_BYTES = 8 << 20
MAX_PARTS_AT_ONCE = 2
_UPLOADS, _FILES = "uploads", "files"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete upload that is not a file yet."""

    path: str
    digest: str
    size_bytes: int


class FileStore:
    """Every method raises Unavailable while the store is away."""

    def __init__(self, url: str, *, max_bytes: int) -> None:
        """Raises BadStoreUrl."""
        self._store: ObjectStore = open_object_store(url)
        self.max_bytes = max_bytes

    @asynccontextmanager
    async def staging(self, chunks: AsyncIterable[bytes], *, max_bytes: int | None = None) -> AsyncIterator[StagedFile]:
        """Stream `chunks` to the store. On exit the upload is removed; `publish` copies it before. Raises
        InvalidRequest for more than `max_bytes`."""
        digest, path, size = hashlib.sha256(), f"{_UPLOADS}/{uuid4().hex}", 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for block in in_blocks(chunks, BLOCK_BYTES):
                size += len(block)
                if max_bytes is not None and size > max_bytes:
                    raise InvalidRequest(f"file: more than {max_bytes} bytes; split it", param="file")
                await asyncio.to_thread(digest.update, block)
                yield block

        async with _telling_outages():
            await self._store.put_async(path, counted(), chunk_size=PART_BYTES, max_concurrency=MAX_PARTS_AT_ONCE)
        try:
            yield StagedFile(path, digest.hexdigest(), size)
        finally:
            await self._remove(path)

    async def publish(self, staged: StagedFile, file_id: UUID) -> None:
        async with _telling_outages():
            await self._store.copy_async(staged.path, file_path(staged.digest, file_id))

    async def read(self, digest: str, file_id: UUID) -> AsyncIterator[bytes]:
        """Raises NotFound if the content is gone."""
        try:
            async for block in read_object(self._store, file_path(digest, file_id), block_bytes=BLOCK_BYTES):
                yield block
        except FileNotFoundError as error:
            raise NotFound("the file's content is gone") from error
        except (BaseError, OSError, TimeoutError) as error:
            raise _away(error) from error

    async def has(self, digest: str, file_id: UUID) -> bool:
        async with _telling_outages():
            return await exists(self._store, file_path(digest, file_id))

    async def remove(self, digest: str, file_id: UUID) -> None:
        async with _telling_outages():
            await self._delete(file_path(digest, file_id))

    async def _remove(self, path: str) -> None:
        """If the store has gone away meanwhile, `ArtifactStore.remove_abandoned` finds the upload later."""
        try:
            async with _telling_outages():
                await self._delete(path)
        except Unavailable:
            return

    async def _delete(self, path: str) -> None:
        try:
            await self._store.delete_async(path)
        except FileNotFoundError:
            return


def file_path(digest: str, file_id: UUID) -> str:
    return f"{_FILES}/{digest}/{file_id.hex}"


@asynccontextmanager
async def _telling_outages() -> AsyncIterator[None]:
    try:
        yield
    except GatewayError:
        raise
    except (BaseError, OSError, TimeoutError) as error:
        raise _away(error) from error


def _away(error: BaseException) -> Unavailable:
    return Unavailable(
        f"the object store of files does not answer as it should: {first_line(error)[:300]}",
        retry_after_s=5,
        code="object_store_unavailable",
    )
