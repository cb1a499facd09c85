"""A configuration of each supported architecture, as arguments of `make_tiny_checkpoint`."""

from typing import Any

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
SLIDING = {"use_sliding_window": True, "sliding_window": 33}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": False},
    "mistral": MISTRAL | {"sliding_window": 40},
    "qwen2": QWEN2 | SLIDING | {"max_window_layers": 1},
    "qwen3": QWEN3,
}
