"""Log-probabilities beside an answer's text: which tokens made the text that goes out, and OpenAI's two shapes."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protocol.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from text.tokenizer import Tokenizer
from worker.engine.request import TokenLogprobs

_LEAST = -9999.0
"""Stands for the logarithm of nought, which JSON cannot say; OpenAI's own choice."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """text_offset: characters of the text before it; logprobs: None for the first token of all."""

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None


class ScoredTokens:
    """Tokens wait here until the first character that they are part of goes out: it may be unfinished, or turn out to
    be the beginning of a stop string."""

    def __init__(self, num_chars: int = 0) -> None:
        """num_chars: how long the text before the first token is."""
        self._held: deque[ScoredToken] = deque()
        self._num_made = self._num_out = num_chars

    def add(self, token_id: int, logprobs: TokenLogprobs, text: str) -> None:
        """text: what became certain with the token."""
        self._held.append(ScoredToken(token_id, self._num_made, logprobs))
        self._num_made += len(text)

    def take(self, num_chars: int, *, is_last: bool) -> list[ScoredToken]:
        """num_chars more have gone out; is_last: and with them all that the tokens made."""
        self._num_out += num_chars
        taken = []
        while self._held and (is_last or self._held[0].text_offset < self._num_out):
            taken.append(self._held.popleft())
        return taken


def score_prompt(prompt_ids: list[int], logprobs: Sequence[TokenLogprobs], offsets: list[int]) -> list[ScoredToken]:
    """logprobs: of all but the first."""
    return [
        ScoredToken(token_id, offset, found)
        for token_id, offset, found in zip(prompt_ids, offsets, (None, *logprobs), strict=True)
    ]


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[ScoredToken]) -> ChatLogprobs:
    return ChatLogprobs(
        content=[_chat_token(tokenizer, token.token_id, token.logprobs) for token in tokens if token.logprobs]
    )


def completion_logprobs(tokenizer: Tokenizer, tokens: list[ScoredToken]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[_spell(tokenizer, token.token_id) for token in tokens],
        token_logprobs=[max(token.logprobs.logprob, _LEAST) if token.logprobs else None for token in tokens],
        top_logprobs=[_by_spelling(tokenizer, token.token_id, token.logprobs) for token in tokens],
        text_offset=[token.text_offset for token in tokens],
    )


def _chat_token(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs) -> TokenLogprob:
    own = _likely(tokenizer, token_id, logprobs.logprob)
    top = [_likely(tokenizer, each, logprob) for each, logprob in logprobs.top]
    return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top)


def _likely(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    piece = tokenizer.piece(token_id)
    return TopLogprob(token=_text_or_escapes(piece), logprob=max(logprob, _LEAST), bytes=list(piece))


def _by_spelling(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs | None) -> dict[str, float] | None:
    """The likeliest and the token itself; of several that are spelled alike the likeliest."""
    if logprobs is None:
        return None
    found: dict[str, float] = {}
    for each, logprob in (*logprobs.top, (token_id, logprobs.logprob)):
        found.setdefault(_spell(tokenizer, each), max(logprob, _LEAST))
    return found


def _spell(tokenizer: Tokenizer, token_id: int) -> str:
    """As OpenAI's older API writes tokens."""
    piece = tokenizer.piece(token_id)
    text = _text_or_escapes(piece)
    return text if text.encode() == piece else f"bytes:{text}"


def _text_or_escapes(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in piece)
