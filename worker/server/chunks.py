"""An answer in OpenAI's formats: as a whole body, and as the payloads of a stream's chunks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

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
from text.reasoning import Thought
from text.tokenizer import Tokenizer
from text.tool_calls.parts import CallArguments, CallBegun, CallEnded, join_calls
from worker.engine.request import TokenLogprobs
from worker.server.choice import Piece
from worker.server.intake import Job
from worker.server.logprobs import ScoredToken, chat_logprobs, completion_logprobs, prompt_logprobs

_Ids = list[int] | msgspec.UnsetType
_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)
class _Progress:
    """How much of one choice was sent, and the tokens whose ids and log-probabilities go with its next chunk."""

    is_open: bool = False
    num_calls: int = 0
    scored: list[ScoredToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    has_prompt: bool = False


class ChunkWriter:
    """The JSON payloads of one stream. `usage` is None unless the client wants it in every chunk."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self._job = job
        self._tokenizer = tokenizer
        self._head = _head(job)
        self._progress = [_Progress() for _ in range(job.num_choices)]

    def opening(self, index: int, usage: Usage | None) -> Iterator[bytes]:
        """The chunk before a choice's first piece, if it needs one."""
        if not self._progress[index].is_open:
            self._progress[index].is_open = True
            if self._job.is_chat:
                yield self._chat(index, Delta(role="assistant", content=""), None, usage)

    def piece(self, piece: Piece, usage: Usage | None) -> Iterator[bytes]:
        self._progress[piece.index].scored += piece.scored
        self._progress[piece.index].token_ids += piece.token_ids
        for part in piece.parts:
            if isinstance(part, Thought):
                yield self._chat(piece.index, Delta(reasoning_content=part.text), None, usage)
            elif isinstance(part, CallBegun | CallArguments):
                yield self._call(piece.index, part, usage)
            elif isinstance(part, CallEnded):
                continue
            elif self._job.is_chat:
                yield self._chat(piece.index, Delta(content=part), None, usage)
            else:
                yield self._text(piece.index, part, None, usage)

    def skip(self, piece: Piece) -> None:
        """Record a piece that the client already has."""
        progress = self._progress[piece.index]
        progress.is_open = True
        progress.has_prompt = progress.has_prompt or self._job.is_chat
        progress.num_calls += sum(isinstance(part, CallBegun) for part in piece.parts)
        progress.scored += piece.scored
        progress.token_ids += piece.token_ids
        if piece.parts or piece.finish_reason is not None:
            progress.scored, progress.token_ids, progress.has_prompt = [], [], True

    def closing(self, index: int, reason: FinishReason, usage: Usage | None) -> bytes:
        if self._job.is_chat:
            return self._chat(index, Delta(), _shown_reason(self._job, reason), usage)
        return self._text(index, "", reason, usage)

    def final_usage(self, usage: Usage) -> bytes:
        chunk_type = ChatCompletionChunk if self._job.is_chat else Completion
        return _ENCODER.encode(chunk_type(**self._head, choices=[], usage=usage))

    def _call(self, index: int, part: CallBegun | CallArguments, usage: Usage | None) -> bytes:
        """As OpenAI sends it: the name first, then the arguments as they come."""
        progress, calls = self._progress[index], self._job.calls
        if calls is not None and calls.is_legacy:
            name, arguments = (part.name, "") if isinstance(part, CallBegun) else (None, part.text)
            return self._chat(
                index, Delta(function_call=FunctionCallDelta(name=name, arguments=arguments)), None, usage
            )
        if isinstance(part, CallBegun):
            named = FunctionCallDelta(name=part.name, arguments="")
            delta = ToolCallDelta(index=progress.num_calls, id=part.id, type="function", function=named)
            progress.num_calls += 1
        else:
            more = FunctionCallDelta(arguments=part.text)
            delta = ToolCallDelta(index=progress.num_calls - 1, function=more)
        return self._chat(index, Delta(tool_calls=[delta]), None, usage)

    def _chat(self, index: int, delta: Delta, reason: FinishReason | None, usage: Usage | None) -> bytes:
        prompt_ids, token_ids, scored = self._take_rest(index)
        choice = ChatChunkChoice(
            index=index,
            delta=delta,
            finish_reason=reason,
            logprobs=chat_logprobs(self._tokenizer, scored, spells_ids=self._spells_ids) if scored else None,
            token_ids=token_ids,
        )
        return _ENCODER.encode(
            ChatCompletionChunk(**self._head, choices=[choice], usage=self._usage(usage), prompt_token_ids=prompt_ids)
        )

    def _text(self, index: int, text: str, reason: FinishReason | None, usage: Usage | None) -> bytes:
        prompt_ids, token_ids, scored = self._take_rest(index)
        choice = CompletionChoice(
            index=index,
            text=text,
            finish_reason=reason,
            logprobs=completion_logprobs(self._tokenizer, scored, spells_ids=self._spells_ids) if scored else None,
            token_ids=token_ids,
            prompt_token_ids=prompt_ids,
        )
        return _ENCODER.encode(Completion(**self._head, choices=[choice], usage=self._usage(usage)))

    def _take_rest(self, index: int) -> tuple[_Ids, _Ids, list[ScoredToken]]:
        """The prompt's ids (in the choice's first chunk only), and the ids and scored tokens that waited for one."""
        progress = self._progress[index]
        token_ids, progress.token_ids = progress.token_ids, []
        scored, progress.scored = progress.scored, []
        if not self._job.display.shows_ids:
            return msgspec.UNSET, msgspec.UNSET, scored
        is_first, progress.has_prompt = not progress.has_prompt, True
        return self._job.prompt_ids_of(index) if is_first else msgspec.UNSET, token_ids, scored

    @property
    def _spells_ids(self) -> bool:
        return self._job.display.spells_ids

    def _usage(self, usage: Usage | None) -> Usage | msgspec.UnsetType | None:
        """As OpenAI does: null in every chunk but the last when the client wants usage, absent when it does not."""
        return usage if self._job.includes_usage else msgspec.UNSET


def encode_whole(
    job: Job, pieces: list[Piece], usage: Usage, tokenizer: Tokenizer, scores: Mapping[int, Sequence[TokenLogprobs]]
) -> bytes:
    """pieces: all pieces of all choices. scores: a prompt's index -> log-probabilities of its tokens, if wanted."""
    head = _head(job) | {"usage": usage}
    by_choice: list[list[Piece]] = [[] for _ in range(job.num_choices)]
    for piece in pieces:
        by_choice[piece.index].append(piece)
    if job.is_chat:
        head |= _of_prompt(job, 0, tokenizer, scores)
        return _ENCODER.encode(
            ChatCompletion(**head, choices=[_chat_choice(job, each, tokenizer) for each in by_choice])
        )
    of_prompts = [_of_prompt(job, i, tokenizer, scores) for i in range(len(job.prompts))]
    return _ENCODER.encode(
        Completion(
            **head,
            choices=[_text_choice(job, each, tokenizer, of_prompts[i // job.n]) for i, each in enumerate(by_choice)],
        )
    )


def _head(job: Job) -> dict[str, Any]:
    return {
        "id": job.answer_id,
        "created": job.created_at_s,
        "model": job.model,
        "service_tier": job.service_tier,
    }


def _of_prompt(
    job: Job, prompt: int, tokenizer: Tokenizer, scores: Mapping[int, Sequence[TokenLogprobs]]
) -> dict[str, Any]:
    ids, num_top = job.prompt_ids_of(prompt * job.n), job.display.num_prompt_top
    shown: dict[str, Any] = {"prompt_token_ids": ids} if job.display.shows_ids else {}
    if num_top is not None:
        shown["prompt_logprobs"] = prompt_logprobs(tokenizer, ids, scores.get(prompt, ()), num_top)
    return shown


def _text_choice(job: Job, pieces: list[Piece], tokenizer: Tokenizer, of_prompt: dict[str, Any]) -> CompletionChoice:
    scored = [token for piece in pieces for token in piece.scored]
    return CompletionChoice(
        index=pieces[0].index,
        text=_text_of(pieces),
        finish_reason=pieces[-1].finish_reason,
        logprobs=completion_logprobs(tokenizer, scored, spells_ids=job.display.spells_ids)
        if job.has_logprobs
        else None,
        token_ids=_ids_of(job, pieces),
        **of_prompt,
    )


def _chat_choice(job: Job, pieces: list[Piece], tokenizer: Tokenizer) -> ChatChoice:
    reason = pieces[-1].finish_reason
    assert reason is not None
    scored = [token for piece in pieces for token in piece.scored]
    return ChatChoice(
        index=pieces[0].index,
        message=_message(job, pieces),
        finish_reason=_shown_reason(job, reason),
        logprobs=chat_logprobs(tokenizer, scored, spells_ids=job.display.spells_ids) if job.has_logprobs else None,
        token_ids=_ids_of(job, pieces),
    )


def _ids_of(job: Job, pieces: list[Piece]) -> _Ids:
    return [token_id for piece in pieces for token_id in piece.token_ids] if job.display.shows_ids else msgspec.UNSET


def _message(job: Job, pieces: list[Piece]) -> ResponseMessage:
    text, calls = _text_of(pieces), join_calls(part for piece in pieces for part in piece.parts)
    thought = "".join([part.text for piece in pieces for part in piece.parts if isinstance(part, Thought)])
    is_legacy = job.calls is not None and job.calls.is_legacy
    return ResponseMessage(
        content=text or None if calls or thought else text,
        reasoning_content=thought or msgspec.UNSET,
        tool_calls=calls if calls and not is_legacy else msgspec.UNSET,
        function_call=calls[0].function if calls and is_legacy else msgspec.UNSET,
    )


def _shown_reason(job: Job, reason: FinishReason) -> FinishReason:
    return "function_call" if reason == "tool_calls" and job.calls is not None and job.calls.is_legacy else reason


def _text_of(pieces: list[Piece]) -> str:
    return "".join([part for piece in pieces for part in piece.parts if isinstance(part, str)])
