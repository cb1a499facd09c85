"""Cosine and sine tables of the rotary embedding, with linear, dynamic and Llama 3.1 scaling."""

import math

import torch
from torch import Tensor

from kernels.rope import signed_sin
from worker.model.rope_config import RopeConfig


def rope_tables(config: RopeConfig, head_dim: int, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin, each [num_positions, 1, head_dim], as `kernels.rope` wants their rows."""
    frequencies = _frequencies(config, head_dim, num_positions)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).to(dtype)[:, None], signed_sin(sin).to(dtype)[:, None]


def _frequencies(config: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """[head_dim / 2], radians per position."""
    theta = _stretched_theta(config, head_dim, num_positions) if config.kind == "dynamic" else config.theta
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if config.kind == "linear":
        return frequencies / config.factor
    return _llama3(config, frequencies) if config.kind == "llama3" else frequencies


def _stretched_theta(config: RopeConfig, head_dim: int, num_positions: int) -> float:
    """Dynamic NTK scaling for the longest sequence that will be served; within the trained window, theta itself.

    transformers stretches theta as a sequence grows, and so mixes new queries with keys at the old angles. One theta
    for all positions keeps cached keys valid, and equals transformers' for a prompt of `num_positions` tokens.
    """
    length = max(num_positions, config.original_max_positions)
    stretch = config.factor * length / config.original_max_positions - (config.factor - 1)
    return config.theta * float(stretch ** (head_dim / (head_dim - 2)))


def _llama3(config: RopeConfig, frequencies: Tensor) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = config.original_max_positions / wavelengths
    blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / config.factor + blend * frequencies
