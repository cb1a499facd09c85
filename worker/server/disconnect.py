"""Ends the work for a client when the client leaves, whether or not anything is being sent to it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


class ClientGone(Exception):
    """The connection was closed by the other side."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; cancel it and raise ClientGone as soon as the client is gone. The body must have been read."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone()
        task.result()
    finally:
        watcher.cancel()
        task.cancel()
        # Awaited, so that neither task outlives the request.
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
