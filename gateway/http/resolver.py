"""Host names that tenants supply are resolved on separate threads: a name server that does not answer blocks a thread
for many seconds, and the event loop's default threads are needed to tokenize prompts."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

MAX_LOOKUPS = 64
"""Concurrent lookups. A lookup that waits longer than its request's time limit is given up."""


class ApartResolver(AbstractResolver):
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_LOOKUPS, thread_name_prefix="outbound-names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=address[0],
                port=address[1],
                family=family,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for family, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        # Do not wait for threads that are waiting for a name server.
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[Any]:
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [each for each in found if each[0] in (socket.AF_INET, socket.AF_INET6)]
