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


class _Lookup:
    """The read of one prefix, for which thousands of requests may wait. A shared `asyncio.Future` searches all of its
    callbacks for every waiter that gives up, which took whole seconds of the event loop under overload."""

    def __init__(self) -> None:
        self.is_over = False
        self._error: BaseException | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    def end(self, error: BaseException | None = None) -> None:
        if not self.is_over:
            self.is_over, self._error = True, error
            for waiter in self._waiters:
                _wake(waiter)

    async def wait(self, *, within_s: float) -> bool:
        """Whether the read has ended by then. Raises its error."""
        if not self.is_over:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            self._waiters.add(waiter)
            timer = loop.call_later(within_s, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)
        if self._error is not None:
            # Each waiter that raises it would lengthen its traceback.
            raise self._error.with_traceback(None)
        return self.is_over


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Lookups:
    """`read` is called with the prefixes of one query; a caller waits only for the query that holds its prefix."""

    def __init__(self, read: Callable[[Collection[str]], Awaitable[None]]) -> None:
        self._read = read
        self._waiting: dict[str, _Lookup] = {}
        self._asked: dict[str, _Lookup] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def wait_for(self, prefix: str, *, patience_s: float) -> None:
        """Wait until the prefix has been read. Raises LookupFailed; after a timeout the read still goes on."""
        lookup = self._asked.get(prefix) or self._waiting.get(prefix) or self._enqueue(prefix)
        for _ in range(_NUM_LOOKS):
            if await lookup.wait(within_s=patience_s / _NUM_LOOKS):
                return
        raise LookupFailed(f"no answer within {patience_s:g} s")

    def forget(self) -> None:
        """Later callers wait for a query that begins after this call."""
        self._asked.clear()

    def _enqueue(self, prefix: str) -> _Lookup:
        self._waiting[prefix] = lookup = _Lookup()
        if len(self._waiting) > MAX_WAITING:
            # Drop the oldest: its client has waited longest, and the newest may be a real key.
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest).end(LookupFailed("too many unknown keys"))
        if len(self._readers) < MAX_READERS:
            # A task of its own, because the request that asks first may be cancelled while others wait with it. The
            # task ends when nobody waits, and passes a failure on to each waiter.
            reader = asyncio.create_task(self._read_waiting(), name="key-lookups")
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        return lookup

    async def _read_waiting(self) -> None:
        while batch := dict(islice(self._waiting.items(), BATCH)):
            for prefix in batch:
                self._asked[prefix] = self._waiting.pop(prefix)
            error: BaseException | None = LookupFailed("the reading was cancelled")
            try:
                await self._read(batch)
                error = None
            except Exception as failed:
                error = failed
            finally:
                for prefix, lookup in batch.items():
                    lookup.end(error)
                    if self._asked.get(prefix) is lookup:
                        del self._asked[prefix]
