"""The object store at a URL: a local folder or S3, the same for gateways and workers."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECT_S = 3.0
REQUEST_S = 60.0
"""Timeout for transferring a part of a few megabytes."""
RETRIES = 2
RETRY_WITHIN_S = 10.0


class BadStoreUrl(ValueError):
    """A store URL that cannot be used. The message is one line for an operator."""


def open_object_store(url: str) -> "ObjectStore":
    """`s3://BUCKET/PREFIX` (keys, region and endpoint from `AWS_*` variables), `file:///FOLDER` or a folder's path.

    Creates a missing folder; does not contact S3 yet. Raises BadStoreUrl.
    """
    # Imported here, so that only processes that use a store wait for the library to load.
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    try:
        folder = local_folder(url)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return LocalStore(folder, automatic_cleanup=True)
        if urlsplit(url).scheme != "s3" or not urlsplit(url).netloc:
            raise BadStoreUrl(f"{url!r} is neither s3://BUCKET/PREFIX nor file:///FOLDER")
        return from_url(
            url,
            client_options={
                "allow_http": True,
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=REQUEST_S),
            },
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_WITHIN_S)},
        )
    except (BaseError, OSError) as error:
        raise BadStoreUrl(f"{url!r} cannot be used: {first_line(error)}") from error


def local_folder(url: str) -> Path | None:
    """The folder of a store on this machine; None for other stores. Raises BadStoreUrl."""
    if "://" not in url:
        return Path(url).absolute()
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise BadStoreUrl(f"{url!r}: write file:///FOLDER")
    return Path(unquote(parts.path))


def first_line(error: BaseException) -> str:
    """The first line of the message: the library appends details for its own developers."""
    return (str(error) or type(error).__name__).split("\n", 1)[0]


async def exists(store: "ObjectStore", path: str) -> bool:
    """Raises OSError or obstore's BaseError."""
    try:
        await store.head_async(path)
    except FileNotFoundError:
        return False
    return True


async def read_object(store: "ObjectStore", path: str, *, block_bytes: int) -> AsyncIterator[bytes]:
    """Reads in requests of `block_bytes`, each with its own deadline. Raises OSError or obstore's BaseError."""
    size: int = (await store.head_async(path))["size"]
    for start in range(0, size, block_bytes):
        yield bytes(await store.get_range_async(path, start=start, end=min(size, start + block_bytes)))
