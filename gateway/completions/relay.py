"""One attempt at one replica: bytes through to the client, counted on their way; books closed before the last byte."""

import aiohttp

from gateway.completions.asked import Asked
from gateway.completions.books import Books
from gateway.completions.exchange import Exchange
from gateway.completions.record import Record
from gateway.completions.sending import send_to
from gateway.completions.sse import BrokenStream, OpenAIStream, WorkerStream
from gateway.completions.whole import pass_whole, route_headers
from gateway.services import Services
from gateway.upstream.bodies import member_body
from gateway.upstream.client import MemberFailed
from protocol.accounting import DONE_EVENT
from router.fleet import Member
from router.policy import Decision


class Relay:
    def __init__(self, services: Services, exchange: Exchange, asked: Asked, record: Record, books: Books) -> None:
        self._services = services
        self._exchange = exchange
        self._asked = asked
        self._record = record
        self._books = books

    async def run(self, decision: Decision, member: Member) -> None:
        """Raises MemberFailed or MemberRefused; `record.is_delivered` tells whether another replica may follow."""
        asked = self._asked
        body = member_body(
            asked.request,
            member,
            model=decision.adapter or member.model_name,
            max_tokens=self._record.measured.route_request.max_tokens,
            priority=asked.tier.priority,
            cache_salt=str(asked.principal.tenant_id),
        )
        async with send_to(member, body, self._services, asked) as response:
            self._exchange.extra_headers |= route_headers(self._record, decision)
            try:
                if asked.request.stream:
                    await self._stream(response, decision, member)
                else:
                    await pass_whole(response, decision, member, self._exchange, self._record, self._books)
            except BrokenStream as error:
                raise MemberFailed(f"{member.worker_id}: {error}") from error

    async def _stream(self, response: aiohttp.ClientResponse, decision: Decision, member: Member) -> None:
        stream = self._reader(decision, member)
        async for chunk in response.content.iter_any():
            passed_on = stream.feed(chunk)
            self._count(stream)
            if passed_on:
                await self._send(passed_on, has_content=stream.has_content)
            if stream.is_done:
                break
        if stream.error_event:
            await self._books.close("error")
            return await self._exchange.finish(DONE_EVENT if stream.is_done else b"")
        if not stream.is_done:
            raise MemberFailed(f"{member.worker_id} ended its stream before [DONE]")
        self._note_figures(stream)
        await self._books.close("ok")
        await self._ensure_started()
        await self._exchange.finish(DONE_EVENT)

    def _reader(self, decision: Decision, member: Member) -> WorkerStream:
        if member.engine == "tiergate":
            return WorkerStream()
        options = self._asked.request.stream_options
        return OpenAIStream(
            wants_usage=options is not None and options.include_usage,
            model_at_member=member.model_name,
            model=decision.model_id,
        )

    def _count(self, stream: WorkerStream) -> None:
        record = self._record
        if stream.num_tokens == record.completion_tokens:
            return
        if record.ttft_ms is None:
            record.note_first_token()
            assert record.ttft_ms is not None
            self._services.metrics.ttft.labels(record.pool).observe(record.ttft_ms / 1000)
        record.completion_tokens = stream.num_tokens
        self._books.note_progress()

    async def _send(self, chunk: bytes, *, has_content: bool) -> None:
        await self._ensure_started()
        if has_content:
            self._record.is_delivered = True
        await self._exchange.send(chunk)

    async def _ensure_started(self) -> None:
        if not self._exchange.is_started:
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            await self._exchange.start(200, {**headers, "x-accel-buffering": "no"})

    def _note_figures(self, stream: WorkerStream) -> None:
        if stream.accounting is not None:
            self._record.note_accounting(stream.accounting)
        elif isinstance(stream, OpenAIStream):
            self._record.finish_reason = stream.finish_reason
            self._record.note_foreign_usage(stream.usage)
