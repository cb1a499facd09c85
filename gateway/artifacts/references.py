"""Adapters that exist elsewhere already: at `s3://` and `file://` URLs below the roots that the operator has allowed.

A file is opened folder by folder from its root, without following symbolic links, so that no link leads out of the
root, not even one that is made meanwhile.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from obstore.exceptions import BaseError

from gateway.http.errors import InvalidRequest, Unavailable
from protocol.artifacts import CONFIG_FILE, WEIGHTS_FILE
from protocol.object_store import BadStoreUrl, first_line, local_folder, open_object_store, read_object
from protocol.peft_config import MAX_CONFIG_BYTES

if TYPE_CHECKING:
    from obstore.store import ObjectStore

BLOCK_BYTES = 4 << 20


class Reference:
    """The two files of an adapter, with the same methods as an upload."""

    def __init__(self, source: "_Source", url: str) -> None:
        self._source = source
        self._url = url

    async def config(self) -> bytes:
        content = b""
        async for block in self._read(CONFIG_FILE):
            content += block
            if len(content) > MAX_CONFIG_BYTES:
                raise InvalidRequest(f"source: {CONFIG_FILE} is larger than {MAX_CONFIG_BYTES} bytes", param="source")
        return content

    def weights(self) -> AsyncIterator[bytes]:
        return self._read(WEIGHTS_FILE)

    async def finish(self) -> None:
        """Nothing to check: a file that was read to its end is complete."""

    async def _read(self, file: str) -> AsyncIterator[bytes]:
        try:
            async for block in self._source.read(file):
                yield block
        except FileNotFoundError:
            raise InvalidRequest(f"source: there is no {file} at {self._url}", param="source") from None
        except (BaseError, OSError) as error:
            raise Unavailable(
                f"source: {self._url} cannot be read: {first_line(error)[:300]}", retry_after_s=5
            ) from error


class References:
    """`roots`: URLs below which adapters may be read. If there are none, no URL is allowed."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = [root.rstrip("/") for root in roots]

    def open(self, url: str) -> Reference:
        """Raises InvalidRequest for a URL outside every root."""
        root = next((root for root in self._roots if url == root or url.startswith(f"{root}/")), None)
        if root is None:
            raise InvalidRequest(
                f"source: {url[:200]!r} is below none of the roots that this platform takes adapters from "
                "(TIERGATE_ADAPTER_ROOTS)",
                param="source",
            )
        parts = [part for part in url.removeprefix(root).split("/") if part]
        if ".." in parts or "." in parts or any("\0" in part or "%" in part for part in parts):
            raise InvalidRequest("source: the path must not hold `.`, `..` or `%`", param="source")
        folder = local_folder(root)
        if folder is not None:
            return Reference(_LocalSource(str(folder), parts), url)
        return Reference(_StoredSource(open_object_store(root), parts), url)


def check_root(url: str) -> None:
    """Raises BadStoreUrl. Nothing is opened or created."""
    if local_folder(url) is None and (urlsplit(url).scheme != "s3" or not urlsplit(url).netloc):
        raise BadStoreUrl(f"{url!r} is neither s3://BUCKET/PREFIX nor file:///FOLDER")


class _Source(Protocol):
    def read(self, file: str) -> AsyncIterator[bytes]: ...


class _StoredSource:
    def __init__(self, store: "ObjectStore", parts: list[str]) -> None:
        self._store = store
        self._parts = parts

    async def read(self, file: str) -> AsyncIterator[bytes]:
        async for block in read_object(self._store, "/".join([*self._parts, file]), block_bytes=BLOCK_BYTES):
            yield block


class _LocalSource:
    def __init__(self, root: str, parts: list[str]) -> None:
        self._root = root
        self._parts = parts

    async def read(self, file: str) -> AsyncIterator[bytes]:
        descriptor = await asyncio.to_thread(_open_below, self._root, [*self._parts, file])
        with os.fdopen(descriptor, "rb") as opened:
            while block := await asyncio.to_thread(opened.read, BLOCK_BYTES):
                yield block


def _open_below(root: str, parts: Sequence[str]) -> int:
    """Open a regular file, and return its descriptor. Raises FileNotFoundError, and InvalidRequest for a link or
    anything else that is no regular file."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = _open(folder, part, os.O_DIRECTORY)
            os.close(folder)
            folder = below
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        found = _open(folder, parts[-1], os.O_NONBLOCK)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise InvalidRequest(f"source: {parts[-1]} is no regular file", param="source")
    return found


def _open(folder: int, part: str, flags: int) -> int:
    if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
        raise _is_link(part)
    try:
        return os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder)
    except NotADirectoryError:
        raise FileNotFoundError(part) from None


def _is_link(part: str) -> InvalidRequest:
    return InvalidRequest(f"source: {part!r} is a symbolic link, which is not followed", param="source")
