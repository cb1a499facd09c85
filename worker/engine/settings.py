"""The settings of an engine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from text.watermark import Watermark


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """dtype: auto, float32, bfloat16 or float16; auto is the checkpoint's own where the machine multiplies it natively,
    else float32.

    max_model_len: None for the model's. num_blocks: None for what kv_memory_bytes holds, at most what max_num_seqs full
    windows need. kv_memory_bytes: None for a default that fits the model and the machine (`kv_memory`).
    enterprise_headroom: the share of slots and of KV blocks that only class 0 may be admitted to. sheds_best_effort:
    refuse classes 2 and 3 before the queue is full. num_threads: the kernels'; None for torch's default and, for a
    small model, 1 in operations that do not take milliseconds. is_deterministic: a request's logits depend on its own
    tokens and adapter alone, to the last bit, at any cost. num_adapter_slots: how many adapters are in the model's
    memory at a time, fewer if their ranks average over 64; adapter_host_bytes: host memory for other adapters.

    device: auto, cpu or cuda; auto is the GPU if torch finds one. On a GPU the cache takes the memory that the weights
    leave, unless num_blocks is set. is_eager: decodes are launched one by one instead of as a graph.
    watermark: for tokens that are drawn, on a CPU only.
    """

    model_path: Path
    dtype: str = "auto"
    max_model_len: int | None = None
    num_blocks: int | None = None
    kv_memory_bytes: int | None = None
    max_num_seqs: int = 64
    max_batched_tokens: int = 2048
    max_waiting: int = 256
    enterprise_headroom: float = 0.0
    sheds_best_effort: bool = False
    num_threads: int | None = None
    is_deterministic: bool = False
    num_adapter_slots: int = 32
    adapter_host_bytes: int = 1 << 29
    adapters: dict[str, Path] = field(default_factory=dict)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    is_eager: bool = False
    watermark: Watermark | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= self.max_batched_tokens:
            raise ValueError(
                f"max_num_seqs {self.max_num_seqs} must be between 1 and max_batched_tokens {self.max_batched_tokens}: "
                "every running request decodes a token in each step"
            )
