"""A model's tokens as llguidance wants them."""

from collections.abc import Iterable
from itertools import chain

from llguidance import LLTokenizer, TokenizerWrapper

from text.reasoning import MARKS
from text.seal import ANSWER_MARKS
from text.tokenizer import Tokenizer
from text.tool_calls.formats import TOOL_FORMATS, marks_of

MODEL_MARKS = tuple({mark for name in TOOL_FORMATS for mark in marks_of(name)} | {*chain(*MARKS.values())})
"""What models write around their calls and thoughts."""
_SPECIAL = b"\xff"
"""llguidance's mark of tokens without text. UTF-8 has no such byte, so that no grammar allows one by its text."""


class Vocabulary:
    """Tokens by the bytes that they add to an answer. Those without text are never allowed, but for the ends."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """vocab_size: the model's, which may have rows beyond the tokenizer's.

        eos_token_ids: the first is the one that is taken where nothing but an end may come.
        Raises ValueError where an answer's text is not made of its tokens' bytes, or no token ends it.
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
        """Those that are control tokens here."""
        known = min(vocab_size, tokenizer.vocab_size)
        self.vocab_size = vocab_size
        self.num_words = -(-vocab_size // 32)
        tokens = [_bytes_of(table[i], i, special) for i in range(known)] + [b""] * (vocab_size - known)
        inside = [token_id for token_id in special if token_id < vocab_size]
        source = TokenizerWrapper(_Source(tokenizer, self.eos_token_ids[0], tokens, inside))
        self.ll = LLTokenizer(source, n_vocab=vocab_size, eos_token=self.eos_token_ids)


class _Source:
    """What llguidance's wrapper reads by these names."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int, tokens: list[bytes], special: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.tokens = tokens
        self.special_token_ids = sorted(special)

    def __call__(self, text: bytes) -> list[int]:
        written = text.decode()
        for mark in ANSWER_MARKS:
            # A model has learnt them as one token each, also where the tokenizer keeps them from those who write text.
            written = written.replace(mark, self._tokenizer.seal.name_of(mark))
        return self._tokenizer.encode(written, add_special_tokens=False)


def _bytes_of(piece: bytes, token_id: int, special: set[int]) -> bytes:
    if token_id in special:
        return _SPECIAL + b"<%d>" % token_id
    return b"" if piece.startswith(_SPECIAL) else piece
