"""Parses Hugging Face's config.json, in the older layout and that of transformers 5, into what our model code needs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.model.rope_config import RopeConfig, parse_rope

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_DEFAULT_SLIDING_WINDOW, _DEFAULT_MAX_WINDOW_LAYERS = 4096, 28
"""transformers' defaults for fields that config.json leaves out."""


class CheckpointError(Exception):
    """A checkpoint that cannot be served: one line naming the file and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {' '.join(reason.split())}")


@dataclass(frozen=True)
class ModelConfig:
    """windows: the number of tokens that each layer's attention covers, counting the token itself; None for all.

    max_positions: the default context window; longest_window: the largest that may be configured.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    max_positions: int
    rope: RopeConfig
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    dtype: str
    eos_token_ids: tuple[int, ...]

    @property
    def longest_window(self) -> int:
        """Dynamic scaling can stretch the window beyond max_positions."""
        return int(self.max_positions * self.rope.factor) if self.rope.kind == "dynamic" else self.max_positions


def read_config(folder: Path) -> ModelConfig:
    """Raises CheckpointError for a missing, malformed or unsupported configuration."""
    path = folder / "config.json"
    raw = read_json(path)
    try:
        return _parse(raw, _eos_ids(folder, raw))
    except KeyError as error:
        raise CheckpointError(path, f"the field {error.args[0]!r} is missing") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(path, str(error)) from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(path, "the file is missing") from error
    except OSError as error:
        raise CheckpointError(path, error.strerror or "cannot be read") from error
    except ValueError as error:
        raise CheckpointError(path, f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(path, "not a JSON object")
    return value


def _parse(raw: dict[str, Any], eos_token_ids: tuple[int, ...]) -> ModelConfig:
    architecture = _architecture(raw)
    if raw.get("quantization_config"):
        raise ValueError("quantized checkpoints are not supported yet")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {raw['hidden_act']!r} is not supported; it must be silu")
    vocab_size = _positive(raw, "vocab_size")
    is_qwen2 = architecture == "Qwen2ForCausalLM"
    num_heads = _positive(raw, "num_attention_heads")
    num_kv_heads = int(raw.get("num_key_value_heads") or num_heads)
    hidden_size = _positive(raw, "hidden_size")
    head_dim = int(raw.get("head_dim") or hidden_size // num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} attention heads cannot share {num_kv_heads} key-value heads")
    if head_dim % 2:
        raise ValueError(f"head_dim {head_dim} is odd; rotary embedding needs an even one")
    has_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_positive(raw, "intermediate_size"),
        num_layers=_positive(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_positions=_positive(raw, "max_position_embeddings"),
        rope=parse_rope(raw),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=is_qwen2 or has_bias,
        o_bias=has_bias and not is_qwen2,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=architecture == "Qwen3ForCausalLM",
        windows=_windows(raw, architecture),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."),
        # Some checkpoints name -1, or an id beyond a truncated vocabulary; neither is ever generated.
        eos_token_ids=tuple(i for i in eos_token_ids if 0 <= i < vocab_size),
    )


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    named = ", ".join(map(str, names)) or f"model_type {raw.get('model_type')!r}"
    if any(raw.get(name) for name in _EXPERT_COUNTS):
        raise ValueError(f"mixture-of-experts models ({named}) are not supported yet")
    raise ValueError(f"unsupported architecture {named}; supported: {', '.join(ARCHITECTURES)}")


def _windows(raw: dict[str, Any], architecture: str) -> tuple[int | None, ...]:
    """Mistral slides in every layer; Qwen in those that `layer_types` names, or from `max_window_layers` on."""
    num_layers = _positive(raw, "num_hidden_layers")
    is_qwen = architecture.startswith("Qwen")
    window = raw.get("sliding_window", _DEFAULT_SLIDING_WINDOW)
    can_slide = raw.get("use_sliding_window", False) if is_qwen else architecture == "MistralForCausalLM"
    if not can_slide or window is None:
        return (None,) * num_layers
    if not isinstance(window, int) or window <= 0:
        raise ValueError(f"sliding_window must be a positive integer, got {window!r}")
    if window >= raw["max_position_embeddings"]:
        return (None,) * num_layers
    if not is_qwen:
        return (window,) * num_layers
    first = raw.get("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS)
    types = raw.get("layer_types") or [_SLIDING if i >= first else _FULL for i in range(num_layers)]
    if len(types) != num_layers or not {_SLIDING, _FULL}.issuperset(types):
        raise ValueError(f"layer_types must be {num_layers} of {_FULL} and {_SLIDING}, got {types}")
    return tuple(window if kind == _SLIDING else None for kind in types)


def _positive(raw: dict[str, Any], name: str) -> int:
    value = raw[name]
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return value


def _eos_ids(folder: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json takes precedence, as in transformers; config.json is the fallback."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    value = generation.get("eos_token_id")
    if value is None:
        value = raw.get("eos_token_id")
    if value is None:
        return ()
    return tuple(map(int, value)) if isinstance(value, list) else (int(value),)
