"""A model's tokens in the form that llguidance needs."""

from collections.abc import Iterable
from itertools import chain

from llguidance import LLTokenizer, TokenizerWrapper

from text.reasoning import MARKS
from text.seal import ANSWER_MARKS
from text.tokenizer import Tokenizer
from text.tool_calls.formats import TOOL_FORMATS, marks_of

MODEL_MARKS = tuple({mark for name in TOOL_FORMATS for mark in marks_of(name)} | {*chain(*MARKS.values())})
"""The marks that models write around their calls and thoughts."""
_SPECIAL = b"\xff"
"""llguidance's mark of tokens without text. UTF-8 has no such byte, so no grammar allows these tokens by their text."""


class Vocabulary:
    """Tokens as the bytes that they add to an answer. Tokens without text match no text: of these, only ends, and marks
    that a grammar names, may come."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """vocab_size: the model's, which may have rows beyond the tokenizer's.

        eos_token_ids: the first one is used where nothing but an end may come.
        Raises ValueError if an answer's text is not made of its tokens' bytes, or if no token ends an answer.
        """
        if tokenizer.pieces is None:
            raise ValueError("this model's tokenizer does more than join its tokens' bytes")
        table, _ = tokenizer.pieces
        self.eos_token_ids = [token_id for token_id in eos_token_ids if token_id < vocab_size]
        if not self.eos_token_ids:
            raise ValueError("this model has no token that ends an answer")
        special = {*tokenizer.special_token_ids, *self.eos_token_ids}
        ids = {mark: tokenizer.token_id(mark) for mark in MODEL_MARKS}
        self.marks = {
            mark: token_id
            for mark, token_id in ids.items()
            if token_id is not None and token_id in tokenizer.special_token_ids and token_id < vocab_size
        }
        """The marks that are control tokens of this model, with their ids."""
        known = min(vocab_size, tokenizer.vocab_size)
        self.vocab_size = vocab_size
        self.num_words = -(-vocab_size // 32)
        tokens = [_bytes_of(table[i], i, special) for i in range(known)] + [b""] * (vocab_size - known)
        inside = [token_id for token_id in special if token_id < vocab_size]
        source = TokenizerWrapper(_Source(tokenizer, self.eos_token_ids[0], tokens, inside))
        self.ll = LLTokenizer(source, n_vocab=vocab_size, eos_token=self.eos_token_ids)


class _Source:
    """The attributes that llguidance's wrapper reads by these names."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int, tokens: list[bytes], special: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.tokens = tokens
        self.special_token_ids = sorted(special)

    def __call__(self, text: bytes) -> list[int]:
        written = text.decode()
        for mark in ANSWER_MARKS:
            # The model has learnt each mark as one token, even where the tokenizer keeps it from users' text.
            written = written.replace(mark, self._tokenizer.seal.name_of(mark))
        return self._tokenizer.encode(written, add_special_tokens=False)


def _bytes_of(piece: bytes, token_id: int, special: set[int]) -> bytes:
    if token_id in special:
        return _SPECIAL + b"<%d>" % token_id
    return b"" if piece.startswith(_SPECIAL) else piece
