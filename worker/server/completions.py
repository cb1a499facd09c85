"""`POST /v1/chat/completions` and `POST /v1/completions`."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from protocol.accounting import ACCOUNTING_HEADER
from protocol.errors import ProtocolError
from worker.log_context import note_caller
from worker.server.answer import Answer
from worker.server.answer_format import grammar_for
from worker.server.caller import Caller, read_caller
from worker.server.choice import Piece
from worker.server.chunks import encode_whole
from worker.server.disconnect import ClientGone, until_disconnect
from worker.server.errors import error_response
from worker.server.events import EventWriter, StreamWriter, write_events
from worker.server.intake import Job, make_job, read_request
from worker.server.replica import Replica
from worker.server.request_body import read_body
from worker.server.waiting import Waiting
from worker.server.whole_events import WholeAnswerWriter

T = TypeVar("T")
_INLINE_BYTES = 16_384
"""A body up to this length is rendered and tokenised in a few milliseconds; a longer one goes to a thread."""


class CompletionsEndpoint:
    """A bare ASGI endpoint, so that each event is one write and a disconnect is seen at once."""

    def __init__(self, replica: Replica, *, is_chat: bool) -> None:
        self._replica = replica
        self._is_chat = is_chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._replica.activity:
                await self._serve(Request(scope, receive), receive, send)
        except ProtocolError as error:
            self._replica.metrics.count_failed(error.code or "invalid_request")
            await error_response(error)(scope, receive, send)
        except (ClientGone, ClientDisconnect):
            self._replica.metrics.count_failed("client_disconnected")

    async def _serve(self, request: Request, receive: Receive, send: Send) -> None:
        replica = self._replica
        replica.check_accepting()
        body = await read_body(request, max_bytes=replica.max_body_bytes)
        caller = read_caller(request.headers, has_key=bool(replica.keys))
        note_caller(request_id=caller.request_id, tenant_id=caller.tenant)
        await until_disconnect(receive, self._answer(body, caller, send))

    async def _answer(self, body: bytes, caller: Caller, send: Send) -> None:
        replica = self._replica
        job, answer = await replica.serve(lambda: self._begin(body, caller))
        tokenizer = replica.bundle.tokenizer
        try:
            if job.is_stream:
                await _send_events(StreamWriter(job, answer, tokenizer), job, answer, replica, send)
            elif job.tells_progress:
                await _send_events(WholeAnswerWriter(job, answer, tokenizer), job, answer, replica, send)
            else:
                await _send_whole(job, answer, replica, send)
        finally:
            answer.close()

    async def _begin(self, body: bytes, caller: Caller) -> tuple[Job, Answer]:
        arrived_at, is_long = time.monotonic(), len(body) > _INLINE_BYTES
        request = await _call(
            partial(read_request, self._replica, body, caller, is_chat=self._is_chat), in_thread=is_long
        )
        grammar = await grammar_for(self._replica, request, caller)
        make = partial(make_job, self._replica, request, caller, arrived_at=arrived_at, grammar=grammar)
        job = await _call(make, in_thread=is_long)
        return job, Answer(self._replica, job)


async def _call(function: Callable[[], T], *, in_thread: bool) -> T:
    return await asyncio.to_thread(function) if in_thread else function()


async def _send_events(writer: EventWriter, job: Job, answer: Answer, replica: Replica, send: Send) -> None:
    """Sends the status with the first event, so that an early failure still gets its own status."""
    is_started = False
    async with aclosing(write_events(writer, answer, replica)) as events:
        async for event in events:
            if not is_started:
                is_started = True
                headers = _headers(job, b"text/event-stream")
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            # The last event also ends the body, so that both are one write.
            await send({"type": "http.response.body", "body": event, "more_body": not answer.is_finished})
    if not answer.is_finished:
        await send({"type": "http.response.body", "body": b""})


async def _send_whole(job: Job, answer: Answer, replica: Replica, send: Send) -> None:
    pieces: list[Piece] = []
    try:
        async with aclosing(answer.pieces()) as arrivals:
            async for arrival in arrivals:
                if not isinstance(arrival, Waiting):
                    pieces += arrival
    except BaseException:
        # The client left, or the engine gave up the request: the tokens received so far are never sent.
        answer.discard(answer.num_made)
        raise
    body = encode_whole(job, pieces, answer.usage, replica.bundle.tokenizer, answer.prompt_logprobs)
    headers = [*_headers(job, b"application/json"), (b"content-length", str(len(body)).encode())]
    if job.wants_accounting:
        headers.append((ACCOUNTING_HEADER.encode(), msgspec.json.encode(answer.accounting)))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    answer.note_told(answer.num_made)


def _headers(job: Job, content_type: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", content_type),
        (b"cache-control", b"no-cache"),
        (b"x-request-id", job.request_id.encode()),
    ]
