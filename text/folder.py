"""Reads how a Hugging Face checkpoint folder treats text: special tokens, chat templates, end-of-text ids."""

from pathlib import Path
from typing import Any

import msgspec

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class FolderError(Exception):
    """A checkpoint folder whose text files are missing or broken; one line naming the file."""


def read_tokenizer_json(folder: Path) -> str:
    path = folder / "tokenizer.json"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FolderError(f"{path}: cannot read it: {getattr(error, 'strerror', None) or error}") from error


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Name (`bos_token`, ...) to text. tokenizer_config.json wins over the older special_tokens_map.json."""
    merged = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    tokens = {name: merged.get(name) for name in SPECIAL_TOKENS}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def read_chat_templates(folder: Path) -> dict[str, str]:
    """Template sources by name; `default` is the usual one. Files win over tokenizer_config.json. May be empty."""
    path, more = folder / "chat_template.jinja", folder / "additional_chat_templates"
    if path.is_file():
        named = {file.stem: file.read_text(encoding="utf-8") for file in sorted(more.glob("*.jinja"))}
        return named | {"default": path.read_text(encoding="utf-8")}
    found = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, str):
        return {"default": found}
    return {entry["name"]: entry["template"] for entry in found or []}


def read_eos_token_ids(folder: Path) -> frozenset[int]:
    """The ids that end an answer according to generation_config.json, else config.json; may be empty."""
    for name in ("generation_config.json", "config.json"):
        found = _read_json(folder / name).get("eos_token_id")
        if found is not None:
            return frozenset([found] if isinstance(found, int) else found)
    return frozenset()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FolderError(f"{path}: not a JSON object: {error}") from error
