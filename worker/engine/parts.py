"""Builds the parts of an engine from its settings: checkpoint, adapters, cache, scheduler."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from kernels import gpu
from kernels.native import set_num_threads
from protocol.artifacts import MAX_RANK
from protocol.load import AdapterBase
from worker.engine.blocks import BlockPool, blocks_needed
from worker.engine.device import DeviceError, GpuState, check_memory, choose_device, kv_bytes, read_state
from worker.engine.gpu_runner import GpuRunner
from worker.engine.gpu_sampler import GpuSampler
from worker.engine.graphs import Graph
from worker.engine.runner import Runner, block_bytes
from worker.engine.sampler import Sampler
from worker.engine.scheduler import Scheduler
from worker.engine.self_check import check_kernels
from worker.engine.settings import EngineSettings
from worker.lora.adapter import Adapter, read_adapter
from worker.lora.pages import AdapterPages
from worker.lora.store import LoraStore
from worker.model.config import CheckpointError, ModelConfig, read_config
from worker.model.llama import load_llama, projection_shapes
from worker.model.weights import content_version, target_dtype

_MIN_THREADED_WEIGHTS = 30_000_000
"""Smaller models gain little from a second thread, and if another process wants the core, OpenMP's threads wait for
each other: steps of 2 ms were measured at 300 ms. Attention far into a long prompt uses all threads anyway."""


_PAGES_PER_SLOT = 4
"""An adapter of rank above 64 takes the pages of several slots."""


@dataclass(frozen=True)
class EngineParts:
    config: ModelConfig
    dtype: torch.dtype
    model_version: str
    max_model_len: int
    eos_token_ids: frozenset[int]
    scheduler: Scheduler
    runner: Runner | GpuRunner
    lora: LoraStore

    @property
    def is_gpu(self) -> bool:
        return isinstance(self.runner, GpuRunner)

    @property
    def adapter_base(self) -> AdapterBase:
        return AdapterBase(num_layers=self.config.num_layers, shapes=projection_shapes(self.config), max_rank=MAX_RANK)


def load_parts(
    settings: EngineSettings,
    *,
    read: Callable[..., Adapter] = read_adapter,
    new_graph: Callable[[], Graph] | None = None,
) -> EngineParts:
    """read: `read_adapter`, or a function that does more besides. Raises CheckpointError, AdapterError or DeviceError,
    one line each."""
    try:
        return _load_parts(settings, read, new_graph)
    except torch.OutOfMemoryError as error:
        raise DeviceError(f"{settings.model_path}: too little memory on the GPU for this model: {error}") from error


def _load_parts(
    settings: EngineSettings, read: Callable[..., Adapter], new_graph: Callable[[], Graph] | None
) -> EngineParts:
    folder = settings.model_path
    config = read_config(folder)
    device = choose_device(settings.device)
    is_gpu = gpu.is_gpu(torch.empty(0, device=device))
    if is_gpu and settings.watermark is not None:
        raise DeviceError(
            "--watermark-key-file: workers on a GPU write no watermark; use --device cpu, or leave it out"
        )
    dtype = target_dtype(settings.dtype, config, folder, is_gpu=is_gpu)
    if device == "cuda":
        check_memory(read_state(), _weight_bytes(config, dtype))
    is_small = _num_weights(config) < _MIN_THREADED_WEIGHTS
    most = settings.num_threads or torch.get_num_threads()
    count = 1 if is_small and settings.num_threads is None else most
    set_num_threads(count, dtype, most=most, is_deterministic=settings.is_deterministic)
    pages = AdapterPages(config, dtype, num_pages=settings.num_adapter_slots * _PAGES_PER_SLOT, device=device)
    model = load_llama(
        folder, config, dtype, pages=pages.layers, is_deterministic=settings.is_deterministic, device=device
    )
    lora = LoraStore(
        pages,
        partial(read, config=config, dtype=dtype),
        num_slots=settings.num_adapter_slots,
        max_host_bytes=settings.adapter_host_bytes,
    )
    for name, path in settings.adapters.items():
        lora.add(name, read_adapter(Path(path), config, dtype), Path(path))
    lora.fill()
    max_model_len = _window(settings, config, folder)
    state = read_state() if device == "cuda" else None
    num_blocks = num_kv_blocks(settings, config, dtype, max_model_len, state)
    pool = BlockPool(num_blocks)
    runner: Runner | GpuRunner
    if is_gpu:
        check_kernels(config, dtype, torch.device(device))
        runner = GpuRunner(
            model,
            lora,
            GpuSampler(
                config.vocab_size, config.eos_token_ids, max_seqs=settings.max_num_seqs, device=torch.device(device)
            ),
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_seqs=settings.max_num_seqs,
            max_tokens=settings.max_batched_tokens,
            is_eager=settings.is_eager,
            new_graph=new_graph,
        )
    else:
        runner = Runner(
            model,
            lora,
            Sampler(config.vocab_size, config.eos_token_ids, watermark=settings.watermark),
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            is_deterministic=settings.is_deterministic,
        )
    return EngineParts(
        config=config,
        dtype=dtype,
        model_version=content_version(folder),
        max_model_len=max_model_len,
        eos_token_ids=frozenset(config.eos_token_ids),
        scheduler=Scheduler(
            pool,
            max_num_seqs=settings.max_num_seqs,
            max_batched_tokens=settings.max_batched_tokens,
            enterprise_headroom=settings.enterprise_headroom,
            window=_look_back(config),
        ),
        runner=runner,
        lora=lora,
    )


def _num_weights(config: ModelConfig) -> int:
    """The approximate number of weights in all layers."""
    return config.num_layers * config.hidden_size * (4 * config.hidden_size + 3 * config.intermediate_size)


def _weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """The approximate size of the whole model."""
    num_tables = 1 if config.tie_embeddings else 2
    return dtype.itemsize * (_num_weights(config) + num_tables * config.vocab_size * config.hidden_size)


def _window(settings: EngineSettings, config: ModelConfig, folder: Path) -> int:
    window = settings.max_model_len or config.max_positions
    if window > config.longest_window:
        raise CheckpointError(
            folder / "config.json", f"max_model_len {window} exceeds the model's window of {config.longest_window}"
        )
    return window


def _look_back(config: ModelConfig) -> int | None:
    """The longest window of any layer, in tokens; None if a layer sees all tokens."""
    windows = [window for window in config.windows if window is not None]
    return max(windows) if len(windows) == config.num_layers else None


def num_kv_blocks(
    settings: EngineSettings, config: ModelConfig, dtype: torch.dtype, max_model_len: int, state: GpuState | None
) -> int:
    """The configured number, or as many as fit into the memory and can be used; at least one window. state: the GPU's,
    once it holds the weights; None for a CPU. Raises CheckpointError."""
    window = blocks_needed(max_model_len)
    bytes_each = block_bytes(config, dtype)
    fitting = kv_bytes(settings, state, window_bytes=window * bytes_each) // bytes_each
    num_blocks = settings.num_blocks or min(fitting, window * settings.max_num_seqs)
    if num_blocks < window:
        raise CheckpointError(
            settings.model_path / "config.json",
            f"a window of {max_model_len} tokens needs {window} KV blocks, there is room for {num_blocks}; "
            "lower max_model_len or give more KV memory",
        )
    return num_blocks
