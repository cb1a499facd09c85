"""A replica, loaded from its settings: the engine, the text side, and what the server says about them."""

import os
import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.object_store import BadStoreUrl
from text.bundle import Bundle
from text.folder import FolderError
from worker.engine.device import DeviceError
from worker.engine.engine import Engine
from worker.engine.settings import EngineSettings
from worker.lora.adapter import AdapterError
from worker.model.config import CheckpointError
from worker.server.defaults import read_defaults
from worker.server.ledger import Ledger
from worker.server.metrics import Metrics
from worker.server.public_prompts import read_public_prompts
from worker.server.replica import Replica
from worker.settings import SettingsError, WorkerSettings

if TYPE_CHECKING:
    from worker.server.fetched_adapters import FetchedAdapters


def load_replica(settings: WorkerSettings) -> Replica:
    """Loads the checkpoint. Raises SettingsError, one line naming the file and the reason."""
    try:
        defaults = read_defaults(settings.model)
        engine = Engine.load(_engine_settings(settings))
        bundle = Bundle.from_folder(
            settings.model,
            max_model_len=engine.max_model_len,
            allow_special_tokens=settings.allow_special_tokens,
        )
        if settings.public_prompts is not None:
            engine.share_prompts(read_public_prompts(settings.public_prompts, bundle))
    except (CheckpointError, AdapterError, DeviceError, FolderError, ValueError) as error:
        raise SettingsError(" ".join(str(error).split())) from error
    worker_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return Replica(
        engine=engine,
        bundle=bundle,
        served_name=settings.served_name,
        pool=settings.pool,
        worker_id=worker_id,
        ledger=Ledger(settings.ledger, worker_id=worker_id),
        created_at_s=int(time.time()),
        defaults=defaults,
        metrics=Metrics(engine, settings.served_name),
        pooling=settings.pooling,
        api_key=settings.api_key,
        metrics_key=settings.metrics_key,
        max_body_bytes=settings.max_body_bytes,
        fetched=_fetched_adapters(settings, engine),
        adapter_paths={name: str(path) for name, path in settings.adapters.items()},
    )


def _fetched_adapters(settings: WorkerSettings, engine: Engine) -> "FetchedAdapters | None":
    if settings.artifacts_url is None:
        return None
    # A worker without a store starts without the import of its library.
    from worker.artifacts.cache import ArtifactCache, CacheError
    from worker.server.fetched_adapters import FetchedAdapters

    max_bytes = settings.artifacts_max_mb << 20
    try:
        cache = ArtifactCache(settings.artifacts_url, settings.adapter_cache, max_bytes=max_bytes)
    except BadStoreUrl as error:
        raise SettingsError(f"--artifacts-url: {error}") from error
    except CacheError as error:
        raise SettingsError(f"--artifacts-dir: {error}") from error
    return FetchedAdapters(cache, engine)


def _engine_settings(settings: WorkerSettings) -> EngineSettings:
    return EngineSettings(
        model_path=settings.model,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        num_blocks=settings.kv_blocks,
        kv_memory_bytes=settings.kv_memory_mb << 20,
        max_num_seqs=settings.max_num_seqs,
        max_batched_tokens=settings.max_batched_tokens,
        max_waiting=settings.max_waiting,
        # Without a key no caller may set a priority, and all requests are of one class.
        enterprise_headroom=0.0 if settings.api_key is None else settings.enterprise_headroom,
        sheds_best_effort=settings.api_key is not None,
        num_threads=settings.num_threads,
        is_deterministic=settings.deterministic,
        num_adapter_slots=settings.adapter_slots,
        adapter_host_bytes=settings.adapter_host_mb << 20,
        device=settings.device,
        is_eager=settings.eager,
        adapters={name: Path(path) for name, path in settings.adapters.items()},
    )
