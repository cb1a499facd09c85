"""Checkpoints in Hugging Face's format: bfloat16 safetensors, config, generation config and the tokenizer's files."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from demo.model import Llama, Shape
from demo.tokenizer import load_tokenizer, save_tokenizer

END_ID, PAD_ID = 2, 0


def export_model(model: Llama, tokenizer_folder: Path, folder: Path) -> None:
    """Write the whole checkpoint folder; an existing one is overwritten file by file."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"model.{name}": weight.detach().to(torch.bfloat16).contiguous() for name, weight in model.named_parameters()
    }
    save_weights(weights, folder / "model.safetensors")
    write_configs(model.shape, folder)
    save_tokenizer(load_tokenizer(tokenizer_folder), folder)


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Replace the file atomically, since a worker may be loading it, and make it readable by everybody."""
    unfinished = path.with_suffix(".tmp")
    save_file(weights, unfinished, metadata={"format": "pt"})
    unfinished.chmod(0o644)
    unfinished.replace(path)


def write_configs(shape: Shape, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("config.json", model_config(shape)), ("generation_config.json", GENERATION_CONFIG)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load_model(folder: Path, shape: Shape) -> Llama:
    """Load the exported weights as fp32, for training adapters."""
    model = Llama(shape)
    weights = {
        name.removeprefix("model."): weight.float() for name, weight in load_file(folder / "model.safetensors").items()
    }
    model.load_state_dict(weights)
    return model


GENERATION_CONFIG = {
    "do_sample": False,
    "eos_token_id": [END_ID, PAD_ID],
    "pad_token_id": PAD_ID,
    "max_new_tokens": 256,
}


def model_config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.rms_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "bfloat16",
    }
