"""Loads adapters from disk to host memory to pages, each stage in its own thread beside the step loop."""

import contextlib
import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from worker.lora.adapter import Adapter, AdapterError
from worker.lora.pages import AdapterPages
from worker.lora.residency import Version

_NICENESS = 10
"""Gives steps precedence over loads on a machine where both want the same cores."""


class AdapterLoader:
    """Keeps adapters in host memory, up to max_host_bytes; drops the least recently used first. Thread-safe.

    read: reads a folder's adapter; raises AdapterError.
    """

    def __init__(self, pages: AdapterPages, read: Callable[[Path], Adapter], *, max_host_bytes: int) -> None:
        self._pages = pages
        self._read = read
        self._max_bytes = max_host_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Adapter] = OrderedDict()
        self._reading: dict[str, Future[Adapter]] = {}
        self._readers = ThreadPoolExecutor(1, "adapter-read", initializer=_give_way)
        self._writers = ThreadPoolExecutor(1, "adapter-write", initializer=_give_way)

    def keep(self, adapter: Adapter) -> None:
        with self._lock:
            self._kept[adapter.digest] = adapter
            self._kept.move_to_end(adapter.digest)
            while sum(each.num_bytes for each in self._kept.values()) > self._max_bytes and len(self._kept) > 1:
                self._kept.popitem(last=False)

    @property
    def num_host_bytes(self) -> int:
        with self._lock:
            return sum(each.num_bytes for each in self._kept.values())

    def drop(self, digest: str) -> None:
        with self._lock:
            self._kept.pop(digest, None)
        self._writers.submit(_trim)

    def release(self, page_ids: Sequence[int]) -> None:
        """Give the pages' memory back, before any later load into them."""
        self._writers.submit(self._pages.release, tuple(page_ids))

    def prefetch(self, version: Version) -> None:
        """Start reading the adapter into host memory."""
        self._fetch(version)

    def load(self, version: Version, done: Callable[[Exception | None], None]) -> None:
        """Write the adapter into its pages; another thread then calls `done` with the error, if there was one."""
        page_ids, fetched = tuple(version.page_ids), self._fetch(version)

        def write() -> None:
            try:
                self._pages.write(fetched.result(), page_ids)
            except Exception as error:
                done(error)
            else:
                done(None)

        self._writers.submit(write)

    def load_now(self, version: Version) -> None:
        """Like `load`, but writes in the caller's thread. Raises AdapterError."""
        self._pages.write(self._fetch(version).result(), version.page_ids)

    def close(self) -> None:
        """Cancels loads that have not begun, and waits for the others."""
        for executor in (self._readers, self._writers):
            executor.shutdown(wait=True, cancel_futures=True)

    def _fetch(self, version: Version) -> Future[Adapter]:
        with self._lock:
            if (kept := self._kept.get(version.digest)) is not None:
                self._kept.move_to_end(version.digest)
                found: Future[Adapter] = Future()
                found.set_result(kept)
                return found
            if (reading := self._reading.get(version.digest)) is not None:
                return reading
            self._reading[version.digest] = reading = self._readers.submit(self._read_again, version)
            return reading

    def _read_again(self, version: Version) -> Adapter:
        try:
            adapter = self._read(version.folder)
            if adapter.digest != version.digest:
                raise AdapterError(version.folder, f"the files of {version.name!r} have changed since it was loaded")
            self.keep(adapter)
            return adapter
        finally:
            with self._lock:
                del self._reading[version.digest]


def _give_way() -> None:
    """Lower this thread's priority; on Linux a thread has its own niceness."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _trim() -> None:
    """glibc's allocator keeps freed memory unless it is asked to return it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
