"""Puts an adapter from a folder in PEFT's format into a store, as the gateway does."""

from pathlib import Path

from gateway.artifacts.store import ArtifactStore
from protocol.artifacts import CONFIG_FILE, WEIGHTS_FILE
from tests.support.adapter_files import in_chunks


async def store_adapter(url: str, folder: Path) -> str:
    """Store the adapter; returns its digest."""
    store = ArtifactStore(url)
    config, weights = (folder / CONFIG_FILE).read_bytes(), (folder / WEIGHTS_FILE).read_bytes()
    async with store.staging(config, in_chunks(weights)) as staged:
        await store.publish(staged)
    return staged.digest
