"""Key reads that requests wait for: many keys in one query, and few queries at once even in a flood of guesses."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from itertools import islice

BATCH = 500
MAX_READERS = 2
"""Two, so that one hanging query does not hold up the others."""
MAX_WAITING = 5_000
_NUM_LOOKS = 8
"""The patience is spent in so many parts. An event loop that was held up wakes late, and before it has read what came
meanwhile; it has then spent one part."""


class LookupFailed(Exception):
    """The database did not answer, or not in time."""


class Lookups:
    """`read` is called with the prefixes of one query; a caller waits only for the query that holds its prefix."""

    def __init__(self, read: Callable[[Collection[str]], Awaitable[None]]) -> None:
        self._read = read
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def wait_for(self, prefix: str, *, patience_s: float) -> None:
        """Wait until the prefix has been read. Raises LookupFailed; after a timeout the read still goes on."""
        future = self._asked.get(prefix) or self._waiting.get(prefix) or self._enqueue(prefix)
        for _ in range(_NUM_LOOKS):
            if (await asyncio.wait([future], timeout=patience_s / _NUM_LOOKS))[0]:
                break
        if not future.done() or future.cancelled():
            raise LookupFailed(f"no answer within {patience_s:g} s")
        future.result()

    def forget(self) -> None:
        """Later callers wait for a query that begins after this call."""
        self._asked.clear()

    def _enqueue(self, prefix: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Waiters may have left; this marks the outcome as seen.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting[prefix] = future
        if len(self._waiting) > MAX_WAITING:
            # Drop the oldest: its client has waited longest, and the newest may be a real key.
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest).set_exception(LookupFailed("too many unknown keys"))
        if len(self._readers) < MAX_READERS:
            # A task of its own, because the request that asks first may be cancelled while others wait with it. The
            # task ends when nobody waits, and passes a failure on to each waiter.
            reader = asyncio.create_task(self._read_waiting(), name="key-lookups")
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        return future

    async def _read_waiting(self) -> None:
        while batch := dict(islice(self._waiting.items(), BATCH)):
            for prefix in batch:
                self._asked[prefix] = self._waiting.pop(prefix)
            try:
                await self._read(batch)
            except Exception as error:
                for future in batch.values():
                    future.set_exception(error)
            else:
                for future in batch.values():
                    future.set_result(None)
            finally:
                for prefix, future in batch.items():
                    future.cancel()
                    if self._asked.get(prefix) is future:
                        del self._asked[prefix]
