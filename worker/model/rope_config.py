"""The rotary embedding's part of config.json, in the older layout and in that of transformers 5."""

import math
from dataclasses import dataclass
from typing import Any

KINDS = ("default", "linear", "dynamic", "llama3")


@dataclass(frozen=True)
class RopeConfig:
    """kind: one of KINDS; low_freq_factor and high_freq_factor are Llama 3.1's.

    original_max_positions: the window that the model was trained for, before llama3 or dynamic scaling.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


def parse_rope(raw: dict[str, Any]) -> RopeConfig:
    """`rope_parameters` (transformers 5) holds theta and scaling; older layouts keep them apart. Raises ValueError."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ValueError(f"the rope scaling must be an object, got {scaling!r}")
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in KINDS:
        raise ValueError(f"rope type {kind!r} is not supported yet; supported: {', '.join(KINDS)}")
    if float(scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))) != 1.0:
        raise ValueError("partial rotary embedding is not supported")
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if kind == "default":
        return RopeConfig(theta=theta)
    factor = float(scaling["factor"])
    if not 1 <= factor < math.inf:
        raise ValueError(f"the rope scaling's factor must be at least 1 and finite, got {factor:g}")
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=factor)
    if kind == "dynamic":
        # As in transformers, a window named beside the factor is ignored.
        return RopeConfig(theta=theta, kind=kind, factor=factor, original_max_positions=raw["max_position_embeddings"])
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        low_freq_factor=float(scaling["low_freq_factor"]),
        high_freq_factor=float(scaling["high_freq_factor"]),
        original_max_positions=int(scaling["original_max_position_embeddings"]),
    )
