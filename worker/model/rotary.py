"""Tables of the rotary embedding's angles, with Llama 3.1's and linear scaling."""

import math

import torch
from torch import Tensor

from kernels.rope import signed_sin
from worker.model.config import RopeConfig


def rope_tables(config: RopeConfig, head_dim: int, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin, each [num_positions, 1, head_dim], as `kernels.rope` wants their rows."""
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * _frequencies(config, head_dim)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).to(dtype)[:, None], signed_sin(sin).to(dtype)[:, None]


def _frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim / 2], radians a position."""
    frequencies = 1.0 / config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if config.kind == "default":
        return frequencies
    if config.kind == "linear":
        return frequencies / config.factor
    return _llama3(config, frequencies)


def _llama3(config: RopeConfig, frequencies: Tensor) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = config.original_max_positions / wavelengths
    blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / config.factor + blend * frequencies
