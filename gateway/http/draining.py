"""A shutdown that no client notices: requests that are just being sent still get an answer."""

import asyncio
from collections.abc import Callable

from uvicorn.server import ServerState

_CLOSE = (b"connection", b"close")
_POLL_S = 0.02


async def serve_last_requests(state: ServerState, *, grace_s: float, is_hurried: Callable[[], bool]) -> None:
    """Keep idle connections open for `grace_s`, because a request may be on its way on them, above all on new ones.

    From now on every answer carries `Connection: close`.
    """
    state.default_headers = [*state.default_headers, _CLOSE]
    for connection in list(state.connections):
        if not _is_idle(connection):
            connection.shutdown()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    # Polled, because uvicorn has no notification for the end of a connection.
    while loop.time() < deadline and not is_hurried() and any(map(_is_idle, state.connections)):  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)


def is_leaving(state: ServerState) -> bool:
    """Whether every answer carries `Connection: close`."""
    return _CLOSE in state.default_headers


def _is_idle(connection: object) -> bool:
    cycle = getattr(connection, "cycle", None)
    return cycle is None or cycle.response_complete
