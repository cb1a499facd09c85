"""One attempt at one replica: bytes through to the client, counted on their way; books closed before the last byte."""

import time

import aiohttp
import msgspec

from gateway.completions.books import Books
from gateway.completions.exchange import Exchange
from gateway.completions.figures import ForeignUsage
from gateway.completions.record import Record
from gateway.completions.sse import BrokenStream, OpenAIStream, WorkerStream
from gateway.metrics import Metrics
from gateway.settings import GatewaySettings
from gateway.upstream.bodies import member_body
from gateway.upstream.client import MemberFailed, WorkerClient, read_all, tiergate_headers
from protocol.accounting import ACCOUNTING_HEADER, DONE_EVENT, Accounting
from router.fleet import Member
from router.policy import Decision


class _Answer(msgspec.Struct):
    usage: ForeignUsage | None = None


_ACCOUNTING = msgspec.json.Decoder(Accounting)
_ANSWER = msgspec.json.Decoder(_Answer)


class Relay:
    def __init__(
        self,
        exchange: Exchange,
        record: Record,
        books: Books,
        *,
        client: WorkerClient,
        metrics: Metrics,
        settings: GatewaySettings,
    ) -> None:
        self._exchange = exchange
        self._record = record
        self._books = books
        self._client = client
        self._metrics = metrics
        self._settings = settings

    async def run(self, decision: Decision, member: Member) -> None:
        """Raises MemberFailed or MemberRefused; `record.is_delivered` tells whether another replica may follow."""
        asked, tier = self._record.asked, self._record.asked.tier
        tenant_id = str(asked.principal.tenant_id)
        elapsed_s = time.monotonic() - asked.received_monotonic_s
        self._metrics.preparation.observe(elapsed_s)
        body = member_body(
            asked.request,
            member,
            model=decision.adapter or member.model_name,
            max_tokens=self._record.measured.route_request.max_tokens,
            priority=tier.priority,
            cache_salt=tenant_id,
        )
        headers = tiergate_headers(
            request_id=asked.request_id,
            tenant_id=tenant_id,
            weight=tier.weight,
            deadline_s=max(0.001, self._settings.request_timeout_s - elapsed_s),
        )
        async with self._client.post(member, asked.path, body, headers) as response:
            self._exchange.extra_headers |= _route_headers(self._record, decision)
            try:
                if asked.is_stream:
                    await self._stream(response, decision, member)
                else:
                    await self._whole(response, decision, member)
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

    async def _whole(self, response: aiohttp.ClientResponse, decision: Decision, member: Member) -> None:
        payload = await read_all(response)
        accounting = response.headers.get(ACCOUNTING_HEADER)
        try:
            if accounting is not None:
                self._record.note_accounting(_ACCOUNTING.decode(accounting))
            else:
                self._note_usage(_ANSWER.decode(payload).usage)
            if member.engine == "openai":
                payload = msgspec.json.encode({**msgspec.json.decode(payload), "model": decision.model_id})
        except (msgspec.MsgspecError, TypeError) as error:
            raise MemberFailed(f"{member.worker_id} sent no JSON that we understand: {error}") from error
        self._record.is_delivered = True
        await self._books.close("ok")
        await self._exchange.answer(200, {"content-type": "application/json"}, payload)

    def _reader(self, decision: Decision, member: Member) -> WorkerStream:
        if member.engine == "tiergate":
            return WorkerStream()
        options = self._record.asked.request.stream_options
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
            self._metrics.ttft.labels(record.pool).observe(record.ttft_ms / 1000)
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
            self._note_usage(stream.usage)

    def _note_usage(self, usage: ForeignUsage | None) -> None:
        """A foreign server's figures; without any, our own count of the prompt and of the events stands."""
        if usage is not None:
            self._record.prompt_tokens = usage.prompt_tokens
            self._record.cached_prompt_tokens = min(usage.cached_tokens, usage.prompt_tokens)
            self._record.completion_tokens = usage.completion_tokens


def _route_headers(record: Record, decision: Decision) -> dict[str, str]:
    headers = {
        "x-tiergate-model": decision.model_id,
        "x-tiergate-pool": decision.pool,
        "x-tiergate-route": decision.reason,
        "x-tiergate-complexity": f"{decision.complexity:.3f}",
    }
    if decision.adapter is not None and record.measured.adapter_name is not None:
        headers["x-tiergate-adapter"] = record.measured.adapter_name
    return headers
