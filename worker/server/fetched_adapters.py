"""Adapters that requests name by their digest: fetched for the first request, forgotten on command."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from protocol.artifacts import artifact_name, digest_of
from worker.artifacts.cache import ArtifactCache
from worker.artifacts.errors import BadArtifact, StoreAway
from worker.engine.errors import UnknownAdapter
from worker.lora.adapter import AdapterError

if TYPE_CHECKING:
    from worker.engine.engine import Engine

WAIT_S = 10.0
"""Shorter than the silence that a gateway takes for death. A fetch that takes longer goes on, for the next request."""
MAX_REGISTERED = 256
"""Adapters registered with the engine, and so listed in each load report; others stay on disk until requested again."""
REMOVE_AGAIN_S = 0.2
MAX_TRIES = 5
"""How often one request brings its adapter back, which may be forgotten between its load and its use."""
T = TypeVar("T")


class FetchedAdapters:
    """Every adapter of the engine that is named by a digest has its folder in the cache."""

    def __init__(self, cache: ArtifactCache, engine: "Engine") -> None:
        self._cache = cache
        self._engine = engine
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of the names being loaded, unloaded or removed right now."""
        self._loaded: OrderedDict[str, None] = OrderedDict()
        """Names, least recently used first."""
        self._removals: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for removal in self._removals:
            removal.cancel()
        self._cache.close()

    async def serve(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `begin`, after fetching the adapter that it needs. Raises begin's other errors, and
        NotInStore, StoreAway or BadArtifact."""
        for _ in range(MAX_TRIES):
            try:
                return await begin()
            except UnknownAdapter as unknown:
                if digest_of(unknown.name) is None:
                    raise
                await self._bring(unknown.name)
        return await begin()

    def note_use(self, name: str) -> None:
        if name in self._loaded:
            self._loaded.move_to_end(name)

    async def forget(self, name: str) -> None:
        """Unloads the adapter. Requests under way still finish with it; then its folder is removed. Raises
        UnknownAdapter."""
        async with self._lock(name):
            self._loaded.pop(name, None)
            try:
                await asyncio.to_thread(self._engine.unload_adapter, name)
            finally:
                removal = asyncio.create_task(self._remove(name))
                self._removals.add(removal)
                removal.add_done_callback(self._removals.discard)

    async def _bring(self, name: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._load(name)
        except TimeoutError:
            raise StoreAway(f"it is not here after {WAIT_S:.0f} s; it goes on coming") from None

    async def _load(self, name: str) -> None:
        digest = digest_of(name)
        assert digest is not None
        # Inside the lock, so that the folder is not removed before it is read.
        async with self._lock(name):
            if name in self._engine.report().adapters:
                return
            folder = await self._cache.fetch(digest)
            try:
                await asyncio.to_thread(self._engine.load_adapter, name, folder)
            except AdapterError as error:
                # The caller need not know this machine's folders.
                raise BadArtifact(str(error).replace(f"{folder}/", "")) from error
            self._loaded[name] = None
        while len(self._loaded) > MAX_REGISTERED:
            await self._unload(self._loaded.popitem(last=False)[0])
        for surplus in self._cache.surplus():
            await self._forget_quietly(artifact_name(surplus))

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    async def _unload(self, name: str) -> None:
        async with self._lock(name):
            with contextlib.suppress(UnknownAdapter):
                await asyncio.to_thread(self._engine.unload_adapter, name)

    async def _remove(self, name: str) -> None:
        """Removes the adapter's folder once no request can need it again, unless it was loaded again meanwhile."""
        digest = digest_of(name)
        assert digest is not None
        # Polled, since the engine does not announce the end of a request.
        while any(name in names for names in self._engine.adapters_in_use()):  # noqa: ASYNC110
            await asyncio.sleep(REMOVE_AGAIN_S)
        async with self._lock(name):
            if name not in self._loaded:
                await self._cache.remove(digest)

    async def _forget_quietly(self, name: str) -> None:
        with contextlib.suppress(UnknownAdapter):
            await self.forget(name)
