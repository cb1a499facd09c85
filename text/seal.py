"""Control tokens under secret names, so that no text from outside can spell one.

A tokenizer finds `<|im_end|>` wherever a text holds it, even where a user wrote it to forge a turn. So at loading every
control token gets a random name, in the tokenizer and in the strings of the chat template. Then a control token that
the template writes counts as one, and text from anybody else stays plain, whatever the template does to it.
"""

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NewType

import msgspec

Sealed = NewType("Sealed", str)
"""A text with control tokens under their secret names. Only for the tokenizer, never for a client."""

ANSWER_MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Marks that models write inside their answers, and that clients send back with them."""


_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\[u/]")
"""In JSON: `\\u003c` or `\\/`, but not an escaped backslash and a letter."""


class Seal:
    """names: a control token's text -> its secret name; a new secret for each tokenizer that is loaded."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.secret = secrets.token_hex(8)
        # Lower-case ASCII, which no normalizer changes.
        self.names = {text: f"<{self.secret}{i:x}>" for i, text in enumerate(texts)}
        self._texts = {name: text for text, name in self.names.items()}
        # The longest first, as the tokenizer matches.
        self._text = _any_of(sorted(self.names, key=len, reverse=True))
        self._name = re.compile(f"<{self.secret}[0-9a-f]+>")

    def close(self, text: str) -> Sealed:
        """Seals the operator's text, in which a spelled control token is meant as one."""
        return Sealed(self._text.sub(lambda found: self.names[found[0]], text))

    def open(self, text: str) -> str:
        """The text with control tokens under their public names."""
        if self.secret not in text:
            return text
        return self._name.sub(lambda found: self._texts[found[0]], text)

    def find(self, text: str) -> str | None:
        """The first control token that `text` spells out."""
        found = self._text.search(text)
        return found[0] if found else None

    def name_of(self, token: str) -> str:
        """The vocabulary's entry for a token."""
        return self.names.get(token, token)

    def text_of(self, entry: str) -> str:
        """The token of a vocabulary entry."""
        return self._texts.get(entry, entry)


def seal_tokenizer(tokenizer_json: str, templates: Iterable[str]) -> tuple[str, Seal]:
    """tokenizer.json with its control tokens renamed; all ids stay. Raises ValueError for what is not JSON."""
    try:
        spelled = msgspec.json.decode(tokenizer_json, type=dict[str, msgspec.Raw])
        added: list[dict[str, Any]] = msgspec.json.decode(spelled.get("added_tokens", b"null")) or []
        seal = Seal(control_tokens(added, templates))
        if not seal.names:
            return tokenizer_json, seal
        for token in added:
            token["content"] = seal.name_of(token["content"])
        spelled["added_tokens"] = msgspec.Raw(msgspec.json.encode(added))
        spelled["model"] = _rename_in_model(spelled["model"], seal)
    except (msgspec.DecodeError, KeyError) as error:
        raise ValueError(f"not a tokenizer: {error}") from error
    return msgspec.json.encode(spelled).decode(), seal


def control_tokens(added: Iterable[Mapping[str, Any]], templates: Iterable[str]) -> list[str]:
    """The tokens flagged as special, and the marks that a template writes (DeepSeek's `<｜User｜>` has no flag)."""
    sources = list(templates)
    return [
        token["content"]
        for token in added
        if token["special"] or (_is_mark(token["content"]) and any(token["content"] in source for source in sources))
    ]


def _is_mark(token: str) -> bool:
    """Other tokens without the flag are words: runs of spaces, code fences, parts of an answer."""
    return token not in ANSWER_MARKS and len(token) > 2 and token[0] in "<[" and token[-1] in ">]"


def _rename_in_model(encoded: msgspec.Raw, seal: Seal) -> msgspec.Raw:
    """Many vocabularies list control tokens, too, and Unigram and WordPiece would find them there for a plain text."""
    parts = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
    if not _may_list(bytes(parts.get("vocab", b"")), seal):
        # Decoding 150,000 tokens and as many merges takes as long as loading them.
        return encoded
    model: dict[str, Any] = msgspec.json.decode(encoded)
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {seal.name_of(entry): token_id for entry, token_id in vocabulary.items()}
    else:
        model["vocab"] = [[seal.name_of(entry), score] for entry, score in vocabulary]
    if model.get("unk_token") is not None:
        model["unk_token"] = seal.name_of(model["unk_token"])
    if model.get("merges"):
        # Without the merges that make a control token, or continue one.
        model["merges"] = [merge for merge in model["merges"] if seal.names.keys().isdisjoint(_parts(merge))]
    return msgspec.Raw(msgspec.json.encode(model))


def _may_list(vocabulary: bytes, seal: Seal) -> bool:
    """Whether the JSON may hold one of the tokens, which may also be spelled with escapes."""
    spelled = any(msgspec.json.encode(text) in vocabulary for text in seal.names)
    return spelled or _ESCAPE.search(vocabulary) is not None


def _parts(merge: str | list[str]) -> tuple[str, str, str]:
    """Both sides of a merge, and what it makes."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    # Without any text the pattern must match nothing, not everywhere.
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")
