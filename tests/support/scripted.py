"""A real checkpoint that always gives the same answer: each token's only likely successor is the next of a script."""

import itertools
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from tests.support.checkpoints import make_tiny_checkpoint

_HIDDEN = 512


def make_scripted_checkpoint(folder: Path, script: list[str], *, special: Collection[str] = ()) -> Path:
    """Make a checkpoint that answers every chat prompt with `script`, then ends the turn.

    Each string of several characters becomes one token; the byte-level tokenizer may split a single character. No token
    may occur twice.
    special: those strings that are control tokens.
    """
    make_tiny_checkpoint(folder, hidden_size=_HIDDEN, num_layers=1, tie_word_embeddings=False, vocab_size=_HIDDEN)
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_tokens(
        [AddedToken(part, special=part in special, normalized=False) for part in script if len(part) > 1]
    )
    tokenizer.save(path)
    _write_weights(folder, _chain(tokenizer, script))
    return folder


def poison(folder: Path, part: str) -> None:
    """Make the computation after `part` of the script fail, by an embedding of NaN."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    token_id = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(part)
    weights["model.embed_tokens.weight"][token_id] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})


def _chain(tokenizer: Tokenizer, script: list[str]) -> list[int]:
    start = tokenizer.encode("<|im_start|>assistant\n").ids[-1]
    said = [token_id for part in script for token_id in tokenizer.encode(part).ids]
    chain = [start, *said, tokenizer.token_to_id("<|im_end|>")]
    assert len(set(chain)) == len(chain) and max(chain) < _HIDDEN, "a token comes twice"
    return chain


def _write_weights(folder: Path, chain: list[int]) -> None:
    """Write layers that add nothing, one-hot embeddings, and a head that maps each token to its successor."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
        elif name.endswith("norm.weight"):
            weight.fill_(1)
    weights["model.embed_tokens.weight"] = torch.eye(_HIDDEN)
    head = torch.zeros(_HIDDEN, _HIDDEN)
    for token, successor in itertools.pairwise(chain):
        head[successor, token] = 1
    weights["lm_head.weight"] = head
    save_file(weights, path, metadata={"format": "pt"})
