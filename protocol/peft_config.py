"""Checks which `adapter_config.json` files, as written by PEFT, can be served; the same for gateway and worker."""

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.artifacts import MAX_RANK

MAX_CONFIG_BYTES = 1 << 20
MAX_SCALING = 1024.0
_UNSUPPORTED = (
    "use_dora",
    "modules_to_save",
    "layers_to_transform",
    "layer_replication",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "trainable_token_indices",
    "target_parameters",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "arrow_config",
    "lora_bias",
)
_ALTERS_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that also change the base model's weights: on unchanged weights the adapter would be wrong."""


class BadLoraConfig(Exception):
    """A config that cannot be served; the message is one line that says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(" ".join(reason.split())[:500])


@dataclass(frozen=True, slots=True)
class LoraConfig:
    rank: int
    scaling: float


def read_config(content: bytes) -> LoraConfig:
    """Raises BadLoraConfig."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadLoraConfig(f"not a JSON object: {error}") from error
    if fields.get("peft_type") != "LORA":
        raise BadLoraConfig(f"peft_type is {fields.get('peft_type')!r}, only 'LORA' can be served")
    for name in _UNSUPPORTED:
        if fields.get(name):
            raise BadLoraConfig(f"{name} is not supported")
    if fields.get("bias", "none") != "none":
        raise BadLoraConfig(f"bias is {fields['bias']!r}, only 'none' can be served")
    initialisation = fields.get("init_lora_weights", True)
    if isinstance(initialisation, str) and initialisation.lower().startswith(_ALTERS_BASE):
        raise BadLoraConfig(
            f"init_lora_weights is {initialisation!r}, which altered the base model's weights in training; "
            "convert the adapter to plain LoRA first, as PEFT's documentation of that method shows"
        )
    rank, alpha = fields.get("r"), fields.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
        raise BadLoraConfig(f"r must be a number from 1 to {MAX_RANK}, got {rank!r}")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise BadLoraConfig(f"lora_alpha must be a number, got {alpha!r}")
    if not abs(alpha) <= MAX_SCALING * MAX_RANK:
        # Checked before the division, which would overflow on an integer of 400 digits.
        raise BadLoraConfig(f"lora_alpha makes a scaling of more than {MAX_SCALING:g}")
    scaling = alpha / (math.sqrt(rank) if fields.get("use_rslora") else rank)
    if abs(scaling) > MAX_SCALING:
        raise BadLoraConfig(f"lora_alpha {alpha} makes a scaling of {scaling:.6g}, more than {MAX_SCALING:g}")
    return LoraConfig(rank, scaling)
