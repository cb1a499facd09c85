"""`POST /v1/embeddings`: every text is a separate request in the engine's step loop."""

import asyncio
import base64
import time
from array import array
from dataclasses import dataclass

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from protocol.accounting import ACCOUNTING_HEADER, Accounting
from protocol.checks import decode_body
from protocol.context_window import CONTEXT_LENGTH_EXCEEDED, prompt_too_long
from protocol.embeddings import Embedding, EmbeddingsRequest, EmbeddingsResponse, EmbeddingsUsage, inputs_of
from protocol.errors import ProtocolError
from text.bundle import TextTooLong
from worker.engine.request import EngineRequest, TokenOutput
from worker.log_context import note_caller
from worker.server.caller import Caller, read_caller
from worker.server.disconnect import ClientGone, until_disconnect
from worker.server.ledger import hour_of
from worker.server.replica import Replica
from worker.server.request_body import read_body

_DECODER = msgspec.json.Decoder(EmbeddingsRequest)
_MAX_AT_ONCE = 16
"""The most texts of one call that are in the engine's queue at once, so that a long list leaves room for others."""
_INLINE_BYTES = 16_384
"""A body up to this length is tokenised in a few milliseconds; a longer one goes to a thread."""


async def embeddings(request: Request) -> Response:
    replica: Replica = request.app.state.replica
    answers: list[Response] = []

    async def answer(body: bytes, caller: Caller) -> None:
        answers.append(await _answer(replica, body, caller))

    try:
        with replica.activity:
            replica.check_accepting()
            body = await read_body(request, max_bytes=replica.max_body_bytes)
            caller = read_caller(request.headers, has_key=bool(replica.keys))
            note_caller(request_id=caller.request_id, tenant_id=caller.tenant)
            await until_disconnect(request.receive, answer(body, caller))
    except ProtocolError as error:
        replica.metrics.count_failed(error.code or "invalid_request")
        raise
    except (ClientGone, ClientDisconnect):
        replica.metrics.count_failed("client_disconnected")
        # nginx's status for a request that its client closed; nobody reads it.
        return Response(status_code=499)
    return answers[0]


@dataclass(frozen=True)
class _Job:
    request: EmbeddingsRequest
    model: str
    engine_requests: list[EngineRequest]

    @property
    def num_prompt(self) -> int:
        return sum(len(each.prompt_ids) for each in self.engine_requests)


async def _answer(replica: Replica, body: bytes, caller: Caller) -> Response:
    arrived_at = time.monotonic()
    job = await replica.serve(lambda: _read_job(replica, body, caller))
    parts: list[list[TokenOutput]] = []
    for start in range(0, len(job.engine_requests), _MAX_AT_ONCE):
        parts.append(await _run(replica, job.engine_requests[start : start + _MAX_AT_ONCE]))
    headers = {"x-request-id": caller.request_id}
    if caller.wants_accounting:
        headers[ACCOUNTING_HEADER] = msgspec.json.encode(_accounting(replica, job, parts)).decode()
    replica.metrics.request_s.observe(time.monotonic() - arrived_at)
    replica.metrics.count_finished("stop")
    replica.ledger.note(caller.tenant, hour_of(caller.request_id), num_prompt=job.num_prompt)
    return Response(_encode(job, parts), headers=headers, media_type="application/json")


async def _read_job(replica: Replica, body: bytes, caller: Caller) -> _Job:
    if len(body) > _INLINE_BYTES:
        return await asyncio.to_thread(_make_job, replica, body, caller)
    return _make_job(replica, body, caller)


def _make_job(replica: Replica, body: bytes, caller: Caller) -> _Job:
    """Raises ProtocolError."""
    request = decode_body(body, _DECODER)
    adapter = replica.adapter_for(request.model)
    size = replica.engine.hidden_size
    if request.dimensions not in (None, size):
        raise ProtocolError(f"this model's embeddings have {size} dimensions and no fewer", param="dimensions")
    requests = []
    for i, text in enumerate(inputs_of(request)):
        engine_request = EngineRequest(
            request_id=f"{caller.request_id}/{i}",
            prompt_ids=_prompt_ids(replica, text),
            adapter=adapter,
            priority=caller.priority(request.priority),
            tenant=caller.tenant,
            weight=caller.weight,
            cache_salt=caller.cache_salt(request.cache_salt),
            deadline_at=caller.deadline_at,
            pooling=replica.pooling,
        )
        requests.append(engine_request)
    return _Job(request, caller.shown_model or request.model, requests)


def _prompt_ids(replica: Replica, text: str | list[int]) -> list[int]:
    window = replica.engine.max_model_len
    try:
        prompt_ids = replica.bundle.encode_text(text, limit=window) if isinstance(text, str) else text
    except TextTooLong as error:
        raise _too_long(f"at least {error.least_tokens}", window) from error
    if not prompt_ids:
        raise ProtocolError("the text has no tokens", param="input")
    if min(prompt_ids) < 0 or max(prompt_ids) >= replica.engine.vocab_size:
        raise ProtocolError(f"a token id is outside the vocabulary of {replica.engine.vocab_size}", param="input")
    if len(prompt_ids) > window:
        raise _too_long(str(len(prompt_ids)), window)
    return prompt_ids


def _too_long(num_tokens: str, window: int) -> ProtocolError:
    return ProtocolError(prompt_too_long(window, num_tokens, "input"), param="input", code=CONTEXT_LENGTH_EXCEEDED)


async def _run(replica: Replica, requests: list[EngineRequest]) -> list[TokenOutput]:
    """The outputs, in request order. Raises EngineError, and then drops all the requests."""
    streams = []
    try:
        for request in requests:
            streams.append(replica.engine.generate(request))
        return [await anext(stream) for stream in streams]
    finally:
        for stream in streams:
            stream.close()


def _encode(job: _Job, parts: list[list[TokenOutput]]) -> bytes:
    vectors = [output.embedding or b"" for part in parts for output in part]
    is_base64 = job.request.encoding_format == "base64"
    answer = EmbeddingsResponse(
        data=[
            Embedding(
                index=i, embedding=base64.b64encode(vector).decode() if is_base64 else array("f", vector).tolist()
            )
            for i, vector in enumerate(vectors)
        ],
        model=job.model,
        usage=EmbeddingsUsage(prompt_tokens=job.num_prompt, total_tokens=job.num_prompt),
    )
    return msgspec.json.encode(answer)


def _accounting(replica: Replica, job: _Job, parts: list[list[TokenOutput]]) -> Accounting:
    return Accounting(
        prompt_tokens=job.num_prompt,
        cached_prompt_tokens=sum(output.cached_tokens for part in parts for output in part),
        completion_tokens=0,
        # The texts of a part share their steps.
        queue_ms=round(sum(max(output.queue_ms for output in part) for part in parts), 3),
        compute_ms=round(sum(max(output.compute_ms for output in part) for part in parts), 3),
        worker_id=replica.worker_id,
        finish_reason="stop",
    )
