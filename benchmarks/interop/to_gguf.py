"""Converts a Llama checkpoint in Hugging Face's format to a GGUF file for llama.cpp: `to_gguf.py FOLDER FILE`.

Runs in the environment of llama-cpp-python, which has numpy and gguf but neither torch nor safetensors.
"""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import gguf  # type: ignore[import-not-found]
import numpy as np

_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMAL, _CONTROL = 1, 3


def main(folder: Path, target: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(target), "llama")
    _add_shape(writer, config)
    _add_tokenizer(writer, folder, config)
    for name, tensor in _tensors(folder / "model.safetensors").items():
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        num_heads = heads.get(name.split(".")[-2])
        writer.add_tensor(_name(name), tensor if num_heads is None else _interleaved(tensor, num_heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: Any, folder: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"] | {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    tokens = [f"[unused {i}]" for i in range(config["vocab_size"])]
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    special = {each["id"] for each in tokenizer["added_tokens"] if each["special"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if i in special else _NORMAL for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_bos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _tensors(path: Path) -> dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]:
    """The tensors of a safetensors file of bfloat16 or float32, as float32."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    found = {}
    for name, told in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in told["data_offsets"])
        raw = content[start:end]
        if told["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, np.float32)
        found[name] = values.reshape(told["shape"])
    return found


def _name(name: str) -> str:
    parts = name.removeprefix("model.").removesuffix(".weight")
    if parts.startswith("layers."):
        _, layer, part = parts.split(".", 2)
        return f"blk.{layer}.{_OF_LAYER[part]}.weight"
    return {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[parts] + ".weight"


def _interleaved(weight: "np.ndarray[Any, np.dtype[np.float32]]", num_heads: int) -> Any:
    """Reorder rotary pairs: they are adjacent in llama.cpp, and half a head apart in Hugging Face's files."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
