"""Caches what is read from the provider for an hour."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from gateway.oidc.errors import ProviderFailed

KEPT_S = 3600.0
FAILED_S = 2.0
"""Callers that waited for a read that failed share its failure, instead of waiting for a read of their own."""
_NEVER = -float("inf")
T = TypeVar("T")


class Kept(Generic[T]):
    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        """read: raises ProviderFailed."""
        self._read = read
        self._lock = asyncio.Lock()
        self._found: tuple[float, T] | None = None
        self._failed: tuple[float, str] = (_NEVER, "")

    async def get(self, *, newer_than: float = _NEVER) -> T:
        """newer_than: the value must have been read since, by the monotonic clock. Raises ProviderFailed."""
        async with self._lock:
            now = time.monotonic()
            if self._found is not None and self._found[0] > max(newer_than, now - KEPT_S):
                return self._found[1]
            failed_at, words = self._failed
            if now - failed_at < FAILED_S:
                raise ProviderFailed(words)
            try:
                found = await self._read()
            except ProviderFailed as error:
                self._failed = time.monotonic(), error.message
                raise
            self._found = time.monotonic(), found
            return found
