"""Log-probabilities beside an answer's text: which tokens made the text being sent, and OpenAI's two formats."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from protocol.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from text.tokenizer import Tokenizer
from worker.engine.request import TokenLogprobs

_LEAST = -9999.0
"""Stands for the logarithm of zero, which JSON cannot express; OpenAI's own choice."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """text_offset: characters of text before the token; logprobs: None for a prompt's first token."""

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None


class ScoredTokens:
    """Holds each token until its first character is sent: the character may be incomplete, or turn out to begin a stop
    string."""

    def __init__(self, num_chars: int = 0) -> None:
        """num_chars: length of the text before the first token."""
        self._held: deque[ScoredToken] = deque()
        self._num_made = self._num_out = num_chars

    def add(self, token_id: int, logprobs: TokenLogprobs, text: str) -> None:
        """text: the text that became certain with the token."""
        self._held.append(ScoredToken(token_id, self._num_made, logprobs))
        self._num_made += len(text)

    def take(self, num_chars: int, *, is_last: bool) -> list[ScoredToken]:
        """The tokens to send after num_chars more characters of text. is_last: with these, all text has been sent."""
        self._num_out += num_chars
        taken = []
        while self._held and (is_last or self._held[0].text_offset < self._num_out):
            taken.append(self._held.popleft())
        return taken


def score_prompt(prompt_ids: list[int], logprobs: Sequence[TokenLogprobs], offsets: list[int]) -> list[ScoredToken]:
    """logprobs: of all tokens but the first."""
    return [
        ScoredToken(token_id, offset, found)
        for token_id, offset, found in zip(prompt_ids, offsets, (None, *logprobs), strict=True)
    ]


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[ScoredToken], *, spells_ids: bool = False) -> ChatLogprobs:
    def likely(token_id: int, logprob: float) -> TopLogprob:
        piece = tokenizer.piece(token_id)
        text = _id_name(token_id) if spells_ids else _text_or_escapes(piece)
        return TopLogprob(token=text, logprob=max(logprob, _LEAST), bytes=list(piece))

    def scored(token_id: int, logprobs: TokenLogprobs) -> TokenLogprob:
        own, top = likely(token_id, logprobs.logprob), [likely(*each) for each in logprobs.top]
        return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top)

    return ChatLogprobs(content=[scored(token.token_id, token.logprobs) for token in tokens if token.logprobs])


def completion_logprobs(
    tokenizer: Tokenizer, tokens: list[ScoredToken], *, spells_ids: bool = False
) -> CompletionLogprobs:
    def spell(token_id: int) -> str:
        return _id_name(token_id) if spells_ids else _spell(tokenizer, token_id)

    return CompletionLogprobs(
        tokens=[spell(token.token_id) for token in tokens],
        token_logprobs=[max(token.logprobs.logprob, _LEAST) if token.logprobs else None for token in tokens],
        top_logprobs=[_by_spelling(spell, token.token_id, token.logprobs) for token in tokens],
        text_offset=[token.text_offset for token in tokens],
    )


def prompt_logprobs(
    tokenizer: Tokenizer, ids: list[int], scores: Sequence[TokenLogprobs], num_top: int
) -> PromptLogprobs:
    """In vLLM's format. scores: of all prompt tokens but the first, perhaps followed by more."""
    found: PromptLogprobs = [None]
    for token_id, score in zip(ids[1:], scores, strict=False):
        ranked = {token_id: (score.logprob, score.rank)}
        for rank, (likely_id, logprob) in enumerate(score.top[:num_top], start=1):
            ranked.setdefault(likely_id, (logprob, rank))
        found.append(
            {
                str(each): PromptLogprob(
                    logprob=max(logprob, _LEAST), rank=rank, decoded_token=_text_or_escapes(tokenizer.piece(each))
                )
                for each, (logprob, rank) in ranked.items()
            }
        )
    return found


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _by_spelling(spell: Callable[[int], str], token_id: int, logprobs: TokenLogprobs | None) -> dict[str, float] | None:
    """The likeliest tokens and the token itself; among tokens spelled alike, the likeliest."""
    if logprobs is None:
        return None
    found: dict[str, float] = {}
    for each, logprob in (*logprobs.top, (token_id, logprobs.logprob)):
        found.setdefault(spell(each), max(logprob, _LEAST))
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
