"""The pools' tokenizers and chat templates, fetched from workers once, so that the gateway can count prompt tokens."""

import asyncio
import logging
import time
from pathlib import Path

from gateway.settings import GatewaySettings
from gateway.upstream.client import MemberFailed, WorkerClient
from gateway.upstream.registry import Registry
from router.fleet import Pool, usable_members
from text.bundle import Bundle
from text.folder import FolderError

_log = logging.getLogger(__name__)

POLL_S = 0.5
RETRY_S = 15.0
FETCH_DEADLINE_S = 30.0


class BundleStore:
    def __init__(self, settings: GatewaySettings, registry: Registry, client: WorkerClient) -> None:
        self._registry = registry
        self._client = client
        self._folders = {name: pool.tokenizer for name, pool in settings.pools.items() if pool.tokenizer}
        self._bundles: dict[str, Bundle] = {}
        self._versions: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}

    def bundle_of(self, pool: str) -> Bundle | None:
        """None if the bundle is not known yet or never will be; callers then count an upper bound."""
        return self._bundles.get(pool)

    async def fetch_forever(self) -> None:
        while True:
            await self.fetch_missing()
            await asyncio.sleep(POLL_S)

    async def fetch_missing(self) -> None:
        now = time.monotonic()
        for pool in self._registry.fleet.pools.values():
            if now < self._retry_at.get(pool.name, 0):
                continue
            try:
                await self._fetch(pool)
            except (MemberFailed, FolderError, ValueError) as error:
                self._retry_at[pool.name] = now + RETRY_S
                _log.warning("prompts of pool %s are counted by an upper bound: %s", pool.name, error)

    async def _fetch(self, pool: Pool) -> None:
        folder = self._folders.get(pool.name)
        if folder is not None:
            if pool.name not in self._bundles:
                self._bundles[pool.name] = await asyncio.to_thread(_read_folder, folder, pool.context_window)
            return
        for member in usable_members(pool):
            if member.engine != "tiergate" or member.load is None:
                continue
            if self._versions.get(pool.name) == member.load.model_version:
                continue
            status, body = await self._client.get(
                member.url, "/tokenizer", engine=member.engine, deadline_s=FETCH_DEADLINE_S
            )
            if status != 200:
                raise MemberFailed(f"{member.worker_id} answered {status} to GET /tokenizer")
            self._bundles[pool.name] = await asyncio.to_thread(Bundle.from_bytes, body)
            self._versions[pool.name] = member.load.model_version
            return


def _read_folder(folder: Path, max_model_len: int) -> Bundle:
    return Bundle.from_folder(folder, max_model_len=max_model_len)
