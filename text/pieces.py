"""Token ids as the bytes that each adds to the text, so that decoding is concatenation and costs O(1) per token."""

import json
from collections.abc import Callable
from typing import Any

import tokenizers

TokenOf = Callable[[int], str | None]
_SPACE_MARK = "▁"


class PieceTable:
    """The bytes of every token of one tokenizer, looked up as needed."""

    def __init__(self, token_of: TokenOf, *, is_byte_level: bool, spaces: dict[str, str]) -> None:
        self._token_of = token_of
        self.is_byte_level = is_byte_level
        self._spaces = spaces
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        piece = self._known.get(token_id)
        if piece is None:
            piece = self._known[token_id] = self._look_up(token_id)
        return piece

    def _look_up(self, token_id: int) -> bytes:
        # A model's embedding may have more rows than the tokenizer has tokens; such ids have no text.
        token = self._token_of(token_id) or ""
        if self.is_byte_level:
            values = [_BYTE_OF_CHAR.get(char) for char in token]
            return token.encode() if None in values else bytes(value for value in values if value is not None)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        for mark, space in self._spaces.items():
            token = token.replace(mark, space)
        return token.encode()


def read_pieces(tokenizer: tokenizers.Tokenizer, token_of: TokenOf) -> tuple[PieceTable, int] | None:
    """The table and how many spaces are cut from a text's start; None if the decoder does more than concatenate."""
    if tokenizer.decoder is None:
        return None
    decoder = json.loads(tokenizer.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceTable(token_of, is_byte_level=True, spaces={}), 0
    if kinds == ["Metaspace"]:
        spaces = {steps[0].get("replacement", _SPACE_MARK): " "}
        num_cut = 0 if steps[0].get("prepend_scheme") == "never" else 1
        return PieceTable(token_of, is_byte_level=False, spaces=spaces), num_cut
    return _read_sentencepiece(token_of, steps)


def _read_sentencepiece(token_of: TokenOf, steps: list[dict[str, Any]]) -> tuple[PieceTable, int] | None:
    """The chain of Llama 2, Mistral and Gemma: Replace, ByteFallback, Fuse and perhaps Strip."""
    kinds = [step["type"] for step in steps]
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"] or kinds[3:] not in ([], ["Strip"]):
        return None
    pattern, strip = steps[0]["pattern"].get("String"), steps[3] if steps[3:] else None
    if pattern is None or (strip and (strip["content"] != " " or strip["stop"])):
        return None
    spaces = {pattern: steps[0]["content"]}
    return PieceTable(token_of, is_byte_level=False, spaces=spaces), strip["start"] if strip else 0


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for the code points from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF_CHAR = _byte_of_char()
