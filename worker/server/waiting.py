"""Telling a client, while its request waits for its first token, that the stream is alive."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

FIRST_NOTICE_S = 1.0
NEXT_NOTICE_S = 5.0
T = TypeVar("T")


@dataclass(frozen=True)
class Waiting:
    """position: 1 is next, 0 is being computed."""

    position: int


async def announce_waiting(tokens: AsyncIterator[T], position: Callable[[], int]) -> AsyncGenerator[T | Waiting]:
    """The stream's outputs, and before the first one a notice now and then."""
    # Waiting in a task of its own: a timeout would cancel the stream's own wait, which gives the request up.
    first = asyncio.ensure_future(anext(tokens))
    try:
        notice_s = FIRST_NOTICE_S
        while not (await asyncio.wait({first}, timeout=notice_s))[0]:
            yield Waiting(position())
            notice_s = NEXT_NOTICE_S
    finally:
        if not first.done():
            first.cancel()
        elif not first.cancelled():
            # Looked at even if we are leaving, or asyncio would report an error that nobody saw.
            first.exception()
    yield first.result()
    async for output in tokens:
        yield output
