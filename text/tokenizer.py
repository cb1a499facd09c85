"""A checkpoint's tokenizer: text to ids and back."""

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from text.folder import FolderError, read_eos_token_ids, read_special_tokens, read_tokenizer_json
from text.pieces import read_pieces
from text.seal import ANSWER_MARKS, seal_tokenizer


class Tokenizer:
    """eos_token_ids: the ids that end an answer; special_tokens: name (`bos_token`, ...) to text.

    special_token_ids: ids that have no text in an answer. chat_templates: template sources, which show control tokens
    that no flag marks.
    """

    def __init__(
        self,
        tokenizer_json: str,
        *,
        special_tokens: dict[str, str],
        eos_token_ids: Iterable[int] = (),
        chat_templates: Iterable[str] = (),
    ) -> None:
        """Raises ValueError for a text that is no tokenizer."""
        sealed_json, self.seal = seal_tokenizer(tokenizer_json, chat_templates)
        try:
            self._inner = tokenizers.Tokenizer.from_str(sealed_json)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"not a tokenizer: {error}") from error
        # Some checkpoints carry the settings of their training; a prompt must never be cut or padded silently.
        self._inner.no_truncation()
        self._inner.no_padding()
        self.tokenizer_json = tokenizer_json
        self.special_tokens = special_tokens
        self.vocab_size = self._inner.get_vocab_size(with_added_tokens=True)
        own_eos = self.token_id(special_tokens.get("eos_token", ""))
        self.eos_token_ids = frozenset(eos_token_ids) | (frozenset() if own_eos is None else {own_eos})
        added = self._inner.get_added_tokens_decoder()
        self.special_token_ids = frozenset(
            # Some tokenizers flag the marks of a tool call, but parsers of calls in an answer's text must see them.
            token_id
            for token_id, token in added.items()
            if token.special and self.seal.text_of(token.content) not in ANSWER_MARKS
        )
        self.pieces = read_pieces(self._inner, self.token)

    @classmethod
    def from_folder(cls, folder: Path, *, chat_templates: Iterable[str] = ()) -> "Tokenizer":
        """Raises FolderError, one line naming the file."""
        text = read_tokenizer_json(folder)
        special_tokens, eos_token_ids = read_special_tokens(folder), read_eos_token_ids(folder)
        try:
            return cls(text, special_tokens=special_tokens, eos_token_ids=eos_token_ids, chat_templates=chat_templates)
        except ValueError as error:
            raise FolderError(f"{folder / 'tokenizer.json'}: {error}") from error

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Only sealed control tokens count as such; those that `text` spells out are plain text.

        add_special_tokens: add what the tokenizer puts around a text (`<s>`); False for a rendered chat, whose template
        wrote that already.
        """
        # Unlike `encode`, this lets other threads run meanwhile, and it computes no offsets.
        (encoding,) = self._inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        (text,) = self._inner.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return self.seal.open(text)

    def piece(self, token_id: int) -> bytes:
        """The bytes of one token, or of a special token's name; they may be only a part of a character's."""
        if self.pieces is not None:
            return self.pieces[0][token_id]
        return self.decode([token_id], skip_special_tokens=False).encode()

    def find_unknown(self, ids: Iterable[int], *, num_rows: int = 0) -> int | None:
        """The first id that neither tokenizer nor model knows. num_rows: the model's, which may have more rows than
        there are tokens; the model can generate those ids, which have no text."""
        known = max(self.vocab_size, num_rows)
        return next((token_id for token_id in ids if token_id >= known and self.token(token_id) is None), None)

    def least_tokens(self, text: str) -> int:
        """A lower bound of the tokens of `text`, found at once; encoding megabytes would take seconds."""
        return len(text) // self._max_token_chars if self._max_token_chars else 0

    @functools.cached_property
    def _max_token_chars(self) -> int:
        """The most characters that one token can stand for; 0 if no bound is known."""
        spelled = json.loads(self.tokenizer_json)
        kinds = [step["type"] for step in _steps(spelled["normalizer"])]
        takes_spaces = any(token["lstrip"] or token["rstrip"] for token in spelled["added_tokens"])
        if self.pieces is None or not self.pieces[0].is_byte_level or takes_spaces or set(kinds) - {"NFC"}:
            return 0
        # A byte-level token has a character for each byte. NFC makes one character of at most four.
        return max(map(len, self._inner.get_vocab())) * (4 if kinds else 1)

    def token_id(self, token: str) -> int | None:
        return self._inner.token_to_id(self.seal.name_of(token))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens as the vocabulary spells them: `Ġworld`."""
        return [self.token(token_id) or "" for token_id in ids]

    def token(self, token_id: int) -> str | None:
        entry = self._inner.id_to_token(token_id)
        return None if entry is None else self.seal.text_of(entry)


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    if part is None:
        return []
    return part["normalizers"] if part["type"] == "Sequence" else [part]
