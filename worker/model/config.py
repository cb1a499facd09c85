"""Hugging Face's config.json, in the older layout and that of transformers 5, as what our model code needs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class CheckpointError(Exception):
    """A checkpoint that cannot be served: one line naming the file and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {' '.join(reason.split())}")


@dataclass(frozen=True)
class RopeConfig:
    """kind: default, linear or llama3; the latter's four numbers as in Llama 3.1's config."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True)
class ModelConfig:
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
    dtype: str
    eos_token_ids: tuple[int, ...]


def read_config(folder: Path) -> ModelConfig:
    """Raises CheckpointError for a missing, malformed or unsupported configuration."""
    path = folder / "config.json"
    raw = read_json(path)
    try:
        return _parse(raw, _eos_ids(folder, raw))
    except KeyError as error:
        raise CheckpointError(path, f"the field {error.args[0]!r} is missing") from error
    except (TypeError, ValueError) as error:
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
    window = raw.get("sliding_window") if raw.get("use_sliding_window", architecture.startswith("Mistral")) else None
    if window and window < raw["max_position_embeddings"]:
        raise ValueError("sliding-window attention is not supported yet")
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
        vocab_size=_positive(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_positive(raw, "intermediate_size"),
        num_layers=_positive(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_positions=_positive(raw, "max_position_embeddings"),
        rope=_parse_rope(raw),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=is_qwen2 or has_bias,
        o_bias=has_bias and not is_qwen2,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=architecture == "Qwen3ForCausalLM",
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."),
        eos_token_ids=eos_token_ids,
    )


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    named = ", ".join(map(str, names)) or f"model_type {raw.get('model_type')!r}"
    raise ValueError(f"unsupported architecture {named}; supported: {', '.join(ARCHITECTURES)}")


def _positive(raw: dict[str, Any], name: str) -> int:
    value = raw[name]
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return value


def _parse_rope(raw: dict[str, Any]) -> RopeConfig:
    """`rope_parameters` (transformers 5) holds theta and scaling; before, they stood apart."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise ValueError(f"rope type {kind!r} is not supported; supported: default, linear, llama3")
    if float(scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))) != 1.0:
        raise ValueError("partial rotary embedding is not supported")
    theta = scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0
    if kind == "default":
        return RopeConfig(theta=float(theta))
    if kind == "linear":
        return RopeConfig(theta=float(theta), kind=kind, factor=float(scaling["factor"]))
    return RopeConfig(
        theta=float(theta),
        kind=kind,
        factor=float(scaling["factor"]),
        low_freq_factor=float(scaling["low_freq_factor"]),
        high_freq_factor=float(scaling["high_freq_factor"]),
        original_max_positions=int(scaling["original_max_position_embeddings"]),
    )


def _eos_ids(folder: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json decides, as in transformers; config.json where it says nothing."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    value = generation.get("eos_token_id")
    if value is None:
        value = raw.get("eos_token_id")
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
