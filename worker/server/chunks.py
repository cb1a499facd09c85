"""An answer in OpenAI's shapes: as a whole body, and as the payloads of a stream's chunks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from protocol.messages import ToolCall
from protocol.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChoice,
    Delta,
    FinishReason,
    FunctionCallDelta,
    ResponseMessage,
    ToolCallDelta,
    Usage,
)
from text.tokenizer import Tokenizer
from worker.server.choice import Piece
from worker.server.intake import Job
from worker.server.logprobs import ScoredToken, chat_logprobs, completion_logprobs

_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)
class _Progress:
    """One choice's: how much was sent, and the tokens whose log-probabilities go with the next chunk."""

    is_open: bool = False
    num_calls: int = 0
    scored: list[ScoredToken] = field(default_factory=list)


class ChunkWriter:
    """The JSON payloads of one stream. `usage` is None unless the client wants it in every chunk."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self._job = job
        self._tokenizer = tokenizer
        self._head: dict[str, Any] = {"id": job.answer_id, "created": job.created_at_s, "model": job.model}
        self._progress = [_Progress() for _ in range(job.num_choices)]

    def opening(self, index: int, usage: Usage | None) -> Iterator[bytes]:
        """The chunk before a choice's first piece, if it needs one."""
        if not self._progress[index].is_open:
            self._progress[index].is_open = True
            if self._job.is_chat:
                yield self._chat(index, Delta(role="assistant", content=""), None, usage)

    def piece(self, piece: Piece, usage: Usage | None) -> Iterator[bytes]:
        self._progress[piece.index].scored += piece.scored
        for part in piece.parts:
            if isinstance(part, ToolCall):
                yield from self._call(piece.index, part, usage)
            elif self._job.is_chat:
                yield self._chat(piece.index, Delta(content=part), None, usage)
            else:
                yield self._text(piece.index, part, None, usage)

    def skip(self, piece: Piece) -> None:
        """The client has it already."""
        progress = self._progress[piece.index]
        progress.is_open = True
        progress.num_calls += sum(isinstance(part, ToolCall) for part in piece.parts)
        progress.scored += piece.scored
        if piece.parts or piece.finish_reason is not None:
            progress.scored = []

    def closing(self, index: int, reason: FinishReason, usage: Usage | None) -> bytes:
        if self._job.is_chat:
            return self._chat(index, Delta(), reason, usage)
        return self._text(index, "", reason, usage)

    def final_usage(self, usage: Usage) -> bytes:
        chunk_type = ChatCompletionChunk if self._job.is_chat else Completion
        return _ENCODER.encode(chunk_type(**self._head, choices=[], usage=usage))

    def _call(self, index: int, call: ToolCall, usage: Usage | None) -> Iterator[bytes]:
        """As OpenAI sends it: the name first, then the arguments."""
        number = self._progress[index].num_calls
        self._progress[index].num_calls += 1
        named = FunctionCallDelta(name=call.function.name, arguments="")
        opened = ToolCallDelta(index=number, id=call.id, type=call.type, function=named)
        filled = ToolCallDelta(index=number, function=FunctionCallDelta(arguments=call.function.arguments))
        yield self._chat(index, Delta(tool_calls=[opened]), None, usage)
        yield self._chat(index, Delta(tool_calls=[filled]), None, usage)

    def _chat(self, index: int, delta: Delta, reason: FinishReason | None, usage: Usage | None) -> bytes:
        scored = self._take_scored(index)
        choice = ChatChunkChoice(
            index=index,
            delta=delta,
            finish_reason=reason,
            logprobs=chat_logprobs(self._tokenizer, scored) if scored else None,
        )
        return _ENCODER.encode(ChatCompletionChunk(**self._head, choices=[choice], usage=self._usage(usage)))

    def _text(self, index: int, text: str, reason: FinishReason | None, usage: Usage | None) -> bytes:
        scored = self._take_scored(index)
        choice = CompletionChoice(
            index=index,
            text=text,
            finish_reason=reason,
            logprobs=completion_logprobs(self._tokenizer, scored) if scored else None,
        )
        return _ENCODER.encode(Completion(**self._head, choices=[choice], usage=self._usage(usage)))

    def _take_scored(self, index: int) -> list[ScoredToken]:
        progress = self._progress[index]
        scored, progress.scored = progress.scored, []
        return scored

    def _usage(self, usage: Usage | None) -> Usage | msgspec.UnsetType | None:
        """As OpenAI does: null in every chunk but the last when the client wants usage, absent when it does not."""
        return usage if self._job.includes_usage else msgspec.UNSET


def encode_whole(job: Job, pieces: list[Piece], usage: Usage, tokenizer: Tokenizer) -> bytes:
    """pieces: all pieces of all choices."""
    head: dict[str, Any] = {"id": job.answer_id, "created": job.created_at_s, "model": job.model, "usage": usage}
    by_choice: list[list[Piece]] = [[] for _ in range(job.num_choices)]
    for piece in pieces:
        by_choice[piece.index].append(piece)
    if job.is_chat:
        return _ENCODER.encode(
            ChatCompletion(**head, choices=[_chat_choice(job, each, tokenizer) for each in by_choice])
        )
    return _ENCODER.encode(Completion(**head, choices=[_text_choice(job, each, tokenizer) for each in by_choice]))


def _text_choice(job: Job, pieces: list[Piece], tokenizer: Tokenizer) -> CompletionChoice:
    scored = [token for piece in pieces for token in piece.scored]
    return CompletionChoice(
        index=pieces[0].index,
        text=_text_of(pieces),
        finish_reason=pieces[-1].finish_reason,
        logprobs=completion_logprobs(tokenizer, scored) if job.has_logprobs else None,
    )


def _chat_choice(job: Job, pieces: list[Piece], tokenizer: Tokenizer) -> ChatChoice:
    text, reason = _text_of(pieces), pieces[-1].finish_reason
    assert reason is not None
    calls = [part for piece in pieces for part in piece.parts if isinstance(part, ToolCall)]
    scored = [token for piece in pieces for token in piece.scored]
    return ChatChoice(
        index=pieces[0].index,
        message=ResponseMessage(content=text or None if calls else text, tool_calls=calls or msgspec.UNSET),
        finish_reason=reason,
        logprobs=chat_logprobs(tokenizer, scored) if job.has_logprobs else None,
    )


def _text_of(pieces: list[Piece]) -> str:
    return "".join([part for piece in pieces for part in piece.parts if isinstance(part, str)])
