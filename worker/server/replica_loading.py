"""Loads a replica from its settings: the engine, the text side, and what the server reports about them."""

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.object_store import BadStoreUrl
from text.bundle import Bundle
from text.folder import FolderError
from text.reasoning import ReasoningFormat, detect_reasoning
from text.tool_calls.formats import ToolFormat, detect_format
from text.watermark import KeyFileError, Watermark, read_watermark
from worker.engine.device import DeviceError
from worker.engine.engine import Engine
from worker.engine.settings import EngineSettings
from worker.guided import GrammarCompiler, Vocabulary
from worker.lora.adapter import AdapterError
from worker.model.config import CheckpointError
from worker.server.about import read_tokenizer_info
from worker.server.defaults import read_defaults
from worker.server.ledger import Ledger
from worker.server.metrics import Metrics
from worker.server.public_prompts import read_public_prompts
from worker.server.replica import Replica
from worker.settings import SettingsError, WorkerSettings

if TYPE_CHECKING:
    from worker.server.fetched_adapters import FetchedAdapters

log = logging.getLogger("tiergate.worker")


def load_replica(settings: WorkerSettings, *, load_engine: Callable[[EngineSettings], Engine] = Engine.load) -> Replica:
    """Loads the checkpoint. Raises SettingsError, one line naming the file and the reason."""
    try:
        defaults = read_defaults(settings.model)
        engine = load_engine(_engine_settings(settings))
        bundle = Bundle.from_folder(
            settings.model,
            max_model_len=engine.max_model_len,
            allow_special_tokens=settings.allow_special_tokens,
        )
        tokenizer_info = read_tokenizer_info(settings.model)
        if settings.public_prompts is not None:
            engine.share_prompts(read_public_prompts(settings.public_prompts, bundle))
    except (CheckpointError, AdapterError, DeviceError, FolderError, ValueError) as error:
        raise SettingsError(" ".join(str(error).split())) from error
    metrics = Metrics(engine, settings.served_name)
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
        metrics=metrics,
        pooling=settings.pooling,
        keys=settings.keys,
        metrics_key=settings.metrics_key,
        max_body_bytes=settings.max_body_bytes,
        max_logprobs=settings.max_logprobs,
        tool_format=_tool_format(settings, bundle),
        reasoning=_reasoning(settings, bundle),
        grammars=_grammars(engine, bundle, metrics),
        fetched=_fetched_adapters(settings, engine),
        adapter_paths={name: str(path) for name, path in settings.adapters.items()},
        tokenizer_info=tokenizer_info,
        is_unix=settings.uds is not None,
    )


def _grammars(engine: Engine, bundle: Bundle, metrics: Metrics) -> GrammarCompiler | None:
    try:
        vocabulary = Vocabulary(bundle.tokenizer, vocab_size=engine.vocab_size, eos_token_ids=engine.eos_token_ids)
    except ValueError as error:
        log.warning("structured output is refused: %s", error)
        return None
    compiler = GrammarCompiler(vocabulary, observe=metrics.grammar_compile_s.observe)
    metrics.watch_grammars(compiler)
    return compiler


def _tool_format(settings: WorkerSettings, bundle: Bundle) -> ToolFormat:
    if settings.tool_parser != "auto":
        return settings.tool_parser
    return detect_format(bundle.template.sources.values() if bundle.template else ())


def _reasoning(settings: WorkerSettings, bundle: Bundle) -> ReasoningFormat | None:
    if settings.reasoning_parser == "auto":
        return detect_reasoning(bundle.template.sources.values() if bundle.template else ())
    return None if settings.reasoning_parser == "none" else settings.reasoning_parser


def _fetched_adapters(settings: WorkerSettings, engine: Engine) -> "FetchedAdapters | None":
    if settings.artifacts_url is None:
        return None
    # Imported here, so that a worker without a store starts without the store's library.
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
        kv_memory_bytes=None if settings.kv_memory_mb is None else settings.kv_memory_mb << 20,
        max_num_seqs=settings.max_num_seqs,
        max_batched_tokens=settings.max_batched_tokens,
        max_waiting=settings.max_waiting,
        # Without a key no caller may set a priority, so all requests have one class.
        enterprise_headroom=0.0 if settings.api_key is None else settings.enterprise_headroom,
        sheds_best_effort=settings.api_key is not None,
        num_threads=settings.num_threads,
        is_deterministic=settings.deterministic,
        num_adapter_slots=settings.adapter_slots,
        adapter_host_bytes=settings.adapter_host_mb << 20,
        device=settings.device,
        is_eager=settings.eager,
        adapters={name: Path(path) for name, path in settings.adapters.items()},
        watermark=_watermark(settings),
    )


def _watermark(settings: WorkerSettings) -> Watermark | None:
    if settings.watermark_key_file is None:
        return None
    try:
        return read_watermark(
            settings.watermark_key_file, gamma=settings.watermark_gamma, delta=settings.watermark_delta
        )
    except KeyFileError as error:
        raise SettingsError(f"--watermark-key-file: {error}") from error
