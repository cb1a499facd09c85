"""An answer in OpenAI's shapes: as a whole body, and as the payloads of a stream's chunks."""

from collections.abc import Iterator
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
from worker.server.intake import Job

_ENCODER = msgspec.json.Encoder()


class ChunkWriter:
    """The JSON payloads of one stream. `usage` is None unless the client wants it in every chunk."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._head: dict[str, Any] = {"id": job.answer_id, "created": job.created_at_s, "model": job.model}
        self._num_calls = 0

    def opening(self, usage: Usage | None) -> Iterator[bytes]:
        if self._job.is_chat:
            yield self._chat(Delta(role="assistant", content=""), None, usage)

    def part(self, part: str | ToolCall, usage: Usage | None) -> Iterator[bytes]:
        if isinstance(part, ToolCall):
            yield from self._call(part, usage)
        elif self._job.is_chat:
            yield self._chat(Delta(content=part), None, usage)
        else:
            yield self._text(part, None, usage)

    def closing(self, reason: FinishReason, usage: Usage | None) -> bytes:
        return self._chat(Delta(), reason, usage) if self._job.is_chat else self._text("", reason, usage)

    def final_usage(self, usage: Usage) -> bytes:
        chunk_type = ChatCompletionChunk if self._job.is_chat else Completion
        return _ENCODER.encode(chunk_type(**self._head, choices=[], usage=usage))

    def _call(self, call: ToolCall, usage: Usage | None) -> Iterator[bytes]:
        """As OpenAI sends it: the name first, then the arguments."""
        index = self._num_calls
        self._num_calls += 1
        named = FunctionCallDelta(name=call.function.name, arguments="")
        opened = ToolCallDelta(index=index, id=call.id, type=call.type, function=named)
        filled = ToolCallDelta(index=index, function=FunctionCallDelta(arguments=call.function.arguments))
        yield self._chat(Delta(tool_calls=[opened]), None, usage)
        yield self._chat(Delta(tool_calls=[filled]), None, usage)

    def _chat(self, delta: Delta, reason: FinishReason | None, usage: Usage | None) -> bytes:
        choice = ChatChunkChoice(index=0, delta=delta, finish_reason=reason)
        return _ENCODER.encode(ChatCompletionChunk(**self._head, choices=[choice], usage=self._usage(usage)))

    def _text(self, text: str, reason: FinishReason | None, usage: Usage | None) -> bytes:
        choice = CompletionChoice(index=0, text=text, finish_reason=reason)
        return _ENCODER.encode(Completion(**self._head, choices=[choice], usage=self._usage(usage)))

    def _usage(self, usage: Usage | None) -> Usage | msgspec.UnsetType | None:
        """Null in every chunk but the last when usage is asked for, absent when it is not, as OpenAI does."""
        return usage if self._job.includes_usage else msgspec.UNSET


def encode_whole(job: Job, parts: list[str | ToolCall], reason: FinishReason, usage: Usage) -> bytes:
    head: dict[str, Any] = {"id": job.answer_id, "created": job.created_at_s, "model": job.model, "usage": usage}
    text = "".join([part for part in parts if isinstance(part, str)])
    if not job.is_chat:
        choice = CompletionChoice(index=0, text=text, finish_reason=reason)
        return _ENCODER.encode(Completion(**head, choices=[choice]))
    calls = [part for part in parts if isinstance(part, ToolCall)]
    message = ResponseMessage(content=text or None if calls else text, tool_calls=calls or msgspec.UNSET)
    choices = [ChatChoice(index=0, message=message, finish_reason=reason)]
    return _ENCODER.encode(ChatCompletion(**head, choices=choices))
