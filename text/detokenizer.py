"""Turns token ids into text as they come: no increment ends inside a character; all together make the whole text."""

import codecs
from collections.abc import Iterable
from typing import Protocol

from text.pieces import PieceTable
from text.tokenizer import Tokenizer

_MAX_HELD_TOKENS = 32
"""More ids than any character has bytes. A text that still ends in U+FFFD after them is broken, not unfinished."""


class IncrementalDetokenizer:
    """One answer's text; special tokens add nothing.

    is_continuation: the text continues a prompt, so a leading space, which is cut at a text's start, is kept.
    shown: special tokens that are part of the text nevertheless.
    """

    def __init__(self, tokenizer: Tokenizer, *, is_continuation: bool = False, shown: Iterable[str] = ()) -> None:
        ids = {token: tokenizer.token_id(token) for token in shown}
        self._shown = {token_id: token for token, token_id in ids.items() if token_id in tokenizer.special_token_ids}
        self._special_ids = tokenizer.special_token_ids
        self._decoder: _Decoder
        if tokenizer.pieces is None:
            self._decoder = _WindowDecoder(tokenizer)
        else:
            table, num_cut = tokenizer.pieces
            self._decoder = _PieceDecoder(table, num_cut=0 if is_continuation else num_cut)

    def add(self, token_ids: Iterable[int]) -> str:
        """The text that is now certain; the possible start of a character waits."""
        if not self._shown:
            return self._decoder.add([token_id for token_id in token_ids if token_id not in self._special_ids])
        return "".join([self._add_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """The rest at the end of the answer; an unfinished character becomes U+FFFD."""
        return self._decoder.flush()

    def _add_one(self, token_id: int) -> str:
        if token_id in self._shown:
            return self._decoder.flush() + self._shown[token_id]
        return "" if token_id in self._special_ids else self._decoder.add([token_id])


class _Decoder(Protocol):
    def add(self, token_ids: list[int]) -> str: ...
    def flush(self) -> str: ...


class _PieceDecoder:
    """For tokenizers whose text is the concatenation of their tokens' bytes: byte-level BPE and SentencePiece."""

    def __init__(self, table: PieceTable, *, num_cut: int) -> None:
        self._table = table
        self._num_cut = num_cut
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: list[int]) -> str:
        return self._cut(self._utf8.decode(b"".join([self._table[token_id] for token_id in token_ids])))

    def flush(self) -> str:
        return self._cut(self._utf8.decode(b"", final=True))

    def _cut(self, text: str) -> str:
        while self._num_cut and text:
            if text[0] != " ":
                self._num_cut = 0
                break
            text, self._num_cut = text[1:], self._num_cut - 1
        return text


class _WindowDecoder:
    """For other decoders (WordPiece, ...): decodes the last tokens with those before them as context."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._held: list[int] = []

    def add(self, token_ids: list[int]) -> str:
        return "".join([self._add_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        return self._emit() if self._held else ""

    def _add_one(self, token_id: int) -> str:
        self._held.append(token_id)
        is_unfinished = self._tokenizer.decode(self._held).endswith("\ufffd") and len(self._held) < _MAX_HELD_TOKENS
        return "" if is_unfinished else self._emit()

    def _emit(self) -> str:
        before = self._tokenizer.decode(self._context)
        text = self._tokenizer.decode(self._context + self._held)
        self._context, self._held = self._held, []
        return text[len(before) :]
