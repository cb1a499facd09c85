"""Combines the answers of several rounds into the one that the client gets, streamed or whole."""

from collections.abc import Collection
from typing import Any, Protocol

import msgspec

from gateway.http.answer import WHOLE_BODY
from gateway.http.errors import UpstreamFailed
from gateway.inference.exchange import Exchange
from gateway.inference.server_tools.said import CallParts, Said, said_in
from gateway.inference.server_tools.usage import UsageSum
from gateway.inference.stream import STREAM_HEADERS
from protocol.accounting import DONE_EVENT, data_event

_Json = dict[str, Any]
_decode = msgspec.json.decode
_encode = msgspec.json.encode


class ClientAnswer(Protocol):
    """The client's answer, built from all rounds."""

    def begin(self) -> None:
        """A round begins."""

    async def take(self, message: Any) -> None:
        """Take an ASGI message of the round's exchange."""

    def said(self) -> Said:
        """What the model said in the completed round."""

    async def beat(self, names: Collection[str]) -> None:
        """Called regularly while tools run, so that a streaming client can be told so."""

    async def finish(self, *, own: Collection[str], num_rounds: int) -> None:
        """The last round's answer goes to the client. own: the client's own tools. The client never sees calls of other
        tools; if only such calls are left, the answer ends with the finish reason `length`."""


class WholeAnswer:
    def __init__(self, client: Exchange, usage: UsageSum) -> None:
        self._client = client
        self._usage = usage
        self._id: Any = None
        """The first round's id, which names the client's own request."""
        self.begin()

    def begin(self) -> None:
        self._body: _Json = {}

    async def take(self, message: Any) -> None:
        body = message.get(WHOLE_BODY)
        if body is not None:
            self._body = _object(body)
            self._id = self._body.get("id") if self._id is None else self._id

    def said(self) -> Said:
        return said_in(self._body)

    async def beat(self, names: Collection[str]) -> None:
        return

    async def finish(self, *, own: Collection[str], num_rounds: int) -> None:
        body, calls = self._body, self.said().calls
        kept = [call.message() for call in calls if call.name in own]
        if len(kept) < len(calls):
            choice = body["choices"][0]
            choice["message"]["tool_calls"] = kept
            if not kept:
                del choice["message"]["tool_calls"]
                choice["finish_reason"] = "length"
        body |= {"id": self._id, "usage": self._usage.shown(body.get("usage"))}
        self._client.extra_headers["x-tiergate-tool-rounds"] = str(num_rounds)
        answer = _encode(body)
        await self._client.keep(answer)
        await self._client.answer(200, {"content-type": "application/json"}, answer)


class StreamedAnswer:
    """Text passes at once, under one id. Tool calls are held until their round ends, when all of them are known."""

    def __init__(self, client: Exchange, usage: UsageSum) -> None:
        self._client = client
        self._usage = usage
        self._id: Any = None
        self._created: Any = None
        self._has_role = False
        self.begin()

    def begin(self) -> None:
        self._texts: list[str] = []
        self._calls = CallParts()
        self._call_chunk: _Json | None = None
        """The last chunk with tool calls, used as a template."""
        self._last: _Json | None = None
        self._figures: _Json | None = None

    async def take(self, message: Any) -> None:
        if message["type"] != "http.response.body" or not message.get("more_body"):
            # The start and the end of a round are not the start and the end of the client's answer.
            return
        events = message["body"].split(b"\n\n")
        await self._send(b"".join([self._event(event) for event in events if event]))

    def said(self) -> Said:
        reason = self._last["choices"][0]["finish_reason"] if self._last is not None else None
        return Said("".join(self._texts) or None, self._calls.calls(), reason)

    async def beat(self, names: Collection[str]) -> None:
        await self._send(f": tools {','.join(names)}\n\n".encode())

    async def finish(self, *, own: Collection[str], num_rounds: int) -> None:
        calls = self._calls.calls()
        kept = [call for call in calls if call.name in own]
        events = []
        if kept and self._call_chunk is not None:
            deltas = [{"index": i, **call.message()} for i, call in enumerate(kept)]
            events.append(_with_delta(self._call_chunk, {"tool_calls": deltas}))
        if self._last is not None:
            if calls and not kept:
                self._last["choices"][0]["finish_reason"] = "length"
            events.append(self._last)
        if self._figures is not None:
            events.append(self._figures | {"usage": self._usage.shown(self._figures["usage"])})
        await self._send(b"".join([data_event(_encode(event)) for event in events]))
        await self._client.keep()
        if not self._client.is_started:
            await self._client.start(200, STREAM_HEADERS)
        await self._client.finish(DONE_EVENT)

    async def _send(self, passed_on: bytes) -> None:
        if not passed_on:
            return
        if not self._client.is_started:
            await self._client.start(200, STREAM_HEADERS)
        await self._client.send(passed_on)

    def _event(self, event: bytes) -> bytes:
        lines = event.split(b"\n")
        comments = b"".join([line + b"\n" for line in lines if line.startswith(b":")])
        data = b"\n".join([line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")])
        shown = self._chunk(_object(data)) if data else None
        if shown is None:
            return comments + b"\n" if comments else b""
        return comments + data_event(_encode(shown))

    def _chunk(self, chunk: _Json) -> _Json | None:
        """The part of a chunk that the client gets now; None if there is none."""
        if self._id is None:
            self._id, self._created = chunk.get("id"), chunk.get("created")
        chunk |= {"id": self._id, "created": self._created}
        usage, choices = chunk.get("usage"), chunk.get("choices")
        if not choices:
            self._figures = chunk if isinstance(usage, dict) else self._figures
            return None if usage else chunk
        if isinstance(usage, dict):
            chunk["usage"] = self._usage.so_far(usage)
        choice = choices[0] if isinstance(choices, list) else None
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(delta, dict | None):
            raise UpstreamFailed("the model's server sent what is no answer")
        return chunk if self._shows(chunk, choice, delta) else None

    def _shows(self, chunk: _Json, choice: _Json, delta: _Json | None) -> bool:
        """Note the content of a chunk's only choice, and remove the parts that the client gets at the end or never.
        Returns whether anything is left to show."""
        delta = choice["delta"] = delta or {}
        calls = delta.pop("tool_calls", None)
        if calls:
            self._calls.add(calls)
            self._call_chunk = chunk
        if isinstance(delta.get("content"), str):
            self._texts.append(delta["content"])
        if delta.pop("role", None) is not None and not self._has_role:
            self._has_role, delta["role"] = True, "assistant"
        if choice.get("finish_reason"):
            self._last = _with_delta(chunk, {})
            choice["finish_reason"] = None
        return any(delta.values()) or bool(choice.get("logprobs"))


def _with_delta(chunk: _Json, delta: _Json) -> _Json:
    """A copy with this delta, and without anything that the client has already been shown."""
    choice = {**chunk["choices"][0], "delta": delta, "logprobs": None}
    return {**chunk, "choices": [choice]}


def _object(text: bytes) -> _Json:
    """Raises UpstreamFailed."""
    try:
        read: _Json = _decode(text, type=dict)
    except (ValueError, RecursionError) as error:
        raise UpstreamFailed("the model's server sent what is no answer") from error
    return read
