"""Checkpoints of random weights in Hugging Face's format, made once in the user's cache."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 8192
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "max_position_embeddings": 131_072,
    },
    "small": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2048,
    },
    "mid": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
    },
}
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def make_model(shape: str) -> Path:
    """The folder of a Llama of that shape in bfloat16, made at the first call."""
    folder = _cache_folder() / shape
    if folder.exists():
        return folder
    draft = folder.with_name(f"{shape}.{os.getpid()}")
    draft.mkdir(parents=True)
    config = _config(SHAPES[shape])
    save_file(dict(_weights(config)), draft / "model.safetensors", metadata={"format": "pt"})
    _make_tokenizer().save(str(draft / "tokenizer.json"))
    _write(draft / "config.json", config)
    _write(draft / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 0})
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|end|>", "eos_token": "<|end|>"}
    _write(draft / "tokenizer_config.json", tokens | {"chat_template": _CHAT_TEMPLATE})
    try:
        draft.rename(folder)
    except OSError:
        # Another process was faster.
        shutil.rmtree(draft)
    return folder


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tiergate" / "benchmark-models"


def _config(shape: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
    } | shape


def _weights(config: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    hidden, wide, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    key_values = hidden // heads * config["num_key_value_heads"]

    def matrix(out_size: int, in_size: int) -> torch.Tensor:
        return (torch.randn(out_size, in_size, generator=generator) * in_size**-0.5).bfloat16()

    yield "model.embed_tokens.weight", matrix(VOCAB_SIZE, hidden)
    yield "lm_head.weight", matrix(VOCAB_SIZE, hidden)
    yield "model.norm.weight", torch.ones(hidden, dtype=torch.bfloat16)
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}"
        for name, out_size, in_size in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", key_values, hidden),
            ("self_attn.v_proj", key_values, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", wide, hidden),
            ("mlp.up_proj", wide, hidden),
            ("mlp.down_proj", hidden, wide),
        ):
            yield f"{prefix}.{name}.weight", matrix(out_size, in_size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", torch.ones(hidden, dtype=torch.bfloat16)


def _make_tokenizer() -> Tokenizer:
    """Byte-level BPE over made-up words. Its ids are meaningless, but every engine has to convert them to text."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(20_000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))
