"""The Lua scripts of this folder; each call has a deadline."""

import asyncio
from collections.abc import Awaitable
from importlib.resources import files
from typing import Any, cast

from redis.asyncio import Redis


class Script:
    """One Lua file of this folder; `call` raises one of AWAY."""

    def __init__(self, redis: "Redis", name: str, *, deadline_s: float) -> None:
        source = files(__package__).joinpath(f"{name}.lua").read_text()
        self._script = redis.register_script(source)
        self._deadline_s = deadline_s

    async def call(self, keys: tuple[str, ...], *arguments: str | int) -> Any:
        async with asyncio.timeout(self._deadline_s):
            return await cast(Awaitable[Any], self._script(keys=list(keys), args=list(arguments)))
