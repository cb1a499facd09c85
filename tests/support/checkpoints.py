"""Tiny random Llama checkpoints and PEFT adapters in Hugging Face's format, made in milliseconds."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = (
    "The quick brown fox jumps over the lazy dog. What is the capital of France? The capital of France is Paris. "
    "Grüße aus Köln, naïve café, 日本語のテキスト, emoji 👩‍🚀🎉. system user assistant 0 1 2 3 4 5 6 7 8 9 "
)


def make_tiny_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    hidden_size: int = 64,
    intermediate_size: int = 128,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    vocab_size: int = 384,
    max_model_len: int = 512,
    dtype: torch.dtype = torch.float32,
    is_transformers5: bool = False,
    **config: Any,
) -> Path:
    """Write config, generation config, weights, tokenizer and chat template. `config` overrides fields of config.json.

    Weights are larger than in a usual initialization, so that answers differ between prompts and adapters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    eos = [SPECIAL_TOKENS.index("<|im_end|>"), SPECIAL_TOKENS.index("<|endoftext|>")]
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "vocab_size": vocab_size,
        "max_position_embeddings": max_model_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": 0,
        "eos_token_id": eos[0],
    } | config
    if is_transformers5:
        fields["dtype"] = fields.pop("torch_dtype")
        rope = fields.pop("rope_scaling", {"rope_type": "default"})
        fields["rope_parameters"] = {**rope, "rope_theta": fields.pop("rope_theta")}
    _write(folder / "config.json", fields)
    _write(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": eos})
    save_file(_make_weights(fields, seed, dtype), folder / "model.safetensors", metadata={"format": "pt"})
    _make_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", _tokenizer_config(max_model_len))
    return folder


def make_tiny_adapter(
    folder: Path,
    checkpoint: Path,
    *,
    seed: int = 1,
    rank: int = 4,
    alpha: float = 16.0,
    target_modules: tuple[str, ...] = ("q_proj", "v_proj"),
    **config: Any,
) -> Path:
    """Write a PEFT adapter for `checkpoint`. Its B matrices are random too, so that it changes every answer."""
    folder.mkdir(parents=True, exist_ok=True)
    model = json.loads((checkpoint / "config.json").read_text())
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "target_modules": list(target_modules),
    } | config
    _write(folder / "adapter_config.json", fields)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(model["num_hidden_layers"]):
        for name in target_modules:
            out_size, in_size = _projections(model)[name]
            block = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
            prefix = f"base_model.model.model.layers.{layer}.{block}.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(rank, in_size, generator=generator) * in_size**-0.5
            weights[f"{prefix}.lora_B.weight"] = torch.randn(out_size, rank, generator=generator) * 0.5
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def _projections(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    return {
        "q_proj": (q, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, q),
        "gate_proj": (wide, hidden),
        "up_proj": (wide, hidden),
        "down_proj": (hidden, wide),
    }


def _make_weights(config: dict[str, Any], seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    architecture = config["architectures"][0]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * scale

    weights = {"model.embed_tokens.weight": random(vocab, hidden), "model.norm.weight": 1 + random(hidden, scale=0.1)}
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = random(vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        for name, (out_size, in_size) in _projections(config).items():
            is_attention = name in ("q_proj", "k_proj", "v_proj", "o_proj")
            key = f"{prefix}{'self_attn' if is_attention else 'mlp'}.{name}"
            weights[f"{key}.weight"] = random(out_size, in_size, scale=1.5 * in_size**-0.5)
            has_qwen_bias = architecture == "Qwen2ForCausalLM" and name in ("q_proj", "k_proj", "v_proj")
            if has_qwen_bias or config["attention_bias" if is_attention else "mlp_bias"]:
                weights[f"{key}.bias"] = random(out_size, scale=0.3)
        if architecture == "Qwen3ForCausalLM":
            weights[f"{prefix}self_attn.q_norm.weight"] = 1 + random(head_dim, scale=0.1)
            weights[f"{prefix}self_attn.k_norm.weight"] = 1 + random(head_dim, scale=0.1)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = 1 + random(hidden, scale=0.1)
    return {name: tensor.to(dtype) for name, tensor in weights.items()}


def _make_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level BPE, so any text can be encoded, and tokens may split a UTF-8 character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tokenizer


def _tokenizer_config(max_model_len: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": "<|im_end|>",
        "pad_token": SPECIAL_TOKENS[0],
        "model_max_length": max_model_len,
        "chat_template": CHAT_TEMPLATE,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))
