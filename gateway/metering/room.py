"""Whether the disk has room for more usage events."""

import asyncio
import shutil
from pathlib import Path

from gateway.metering.backlog import read_waiting

LOOK_S = 1.0


class OutboxRoom:
    """Measures free room in the background, so that requests are refused before their events would find none."""

    def __init__(self, data_dir: Path, *, max_bytes: int, min_free_bytes: int) -> None:
        self._data_dir = data_dir
        self.max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self.free_bytes = 0
        self.shortage: str | None = None
        """Why new requests are refused; None while there is room."""

    async def keep_forever(self) -> None:
        while True:
            await self.measure()
            await asyncio.sleep(LOOK_S)

    async def measure(self) -> None:
        """Off the event loop, because the disk may be slow."""
        num_bytes, self.free_bytes = await asyncio.to_thread(self._measure)
        if num_bytes > self.max_bytes:
            self.shortage = "what waits to be shipped has reached its bound"
        elif self.free_bytes < self._min_free_bytes:
            self.shortage = "the disk is nearly full"
        else:
            self.shortage = None

    def _measure(self) -> tuple[int, int]:
        return read_waiting(self._data_dir).num_bytes, shutil.disk_usage(self._data_dir).free
