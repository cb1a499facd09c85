"""One try at one replica: bytes through to the client, counted on their way; accounts closed before the last byte."""

import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import msgspec

from gateway.inference.accounts import Accounts
from gateway.inference.exchange import Exchange
from gateway.inference.usage_record import UsageRecord
from gateway.inference.validate import Accepted, Asked
from gateway.services import Services
from gateway.upstream.client import MemberFailed, read_all, tiergate_headers
from gateway.upstream.member_body import member_body
from gateway.upstream.sse import BrokenStream, ForeignUsage, OpenAIStream, WorkerStream
from protocol.accounting import ACCOUNTING_HEADER, DONE_EVENT, Accounting
from router.fleet import Member
from router.policy import Decision


class Relay:
    def __init__(
        self, services: Services, exchange: Exchange, asked: Asked, record: UsageRecord, accounts: Accounts
    ) -> None:
        self._services = services
        self._exchange = exchange
        self._asked = asked
        self._record = record
        self._books = accounts

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


class _Answer(msgspec.Struct):
    usage: ForeignUsage | None = None


_ACCOUNTING = msgspec.json.Decoder(Accounting)
_ANSWER = msgspec.json.Decoder(_Answer)


async def pass_whole(
    response: aiohttp.ClientResponse,
    decision: Decision,
    member: Member,
    exchange: Exchange,
    record: UsageRecord,
    accounts: Accounts,
) -> None:
    """Raises MemberFailed."""
    payload = await read_all(response)
    accounting = response.headers.get(ACCOUNTING_HEADER)
    try:
        if accounting is not None:
            record.note_accounting(_ACCOUNTING.decode(accounting))
        else:
            record.note_foreign_usage(_ANSWER.decode(payload).usage)
        if member.engine == "openai":
            payload = msgspec.json.encode({**msgspec.json.decode(payload), "model": decision.model_id})
    except (msgspec.MsgspecError, TypeError) as error:
        raise MemberFailed(f"{member.worker_id} sent no JSON that we understand: {error}") from error
    record.is_delivered = True
    await accounts.close("ok")
    await exchange.answer(200, {"content-type": "application/json"}, payload)


def route_headers(record: UsageRecord, decision: Decision) -> dict[str, str]:
    headers = {
        "x-tiergate-model": decision.model_id,
        "x-tiergate-pool": decision.pool,
        "x-tiergate-route": decision.reason,
        "x-tiergate-complexity": f"{decision.complexity:.3f}",
    }
    if decision.adapter is not None and record.measured.adapter_name is not None:
        headers["x-tiergate-adapter"] = record.measured.adapter_name
    return headers


def send_to(
    member: Member, body: bytes, services: Services, asked: Accepted[Any]
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """As `WorkerClient.post`."""
    elapsed_s = time.monotonic() - asked.received_monotonic_s
    services.metrics.preparation.observe(elapsed_s)
    headers = tiergate_headers(
        request_id=asked.request_id,
        tenant_id=str(asked.principal.tenant_id),
        weight=asked.tier.weight,
        deadline_s=max(0.001, services.settings.request_timeout_s - elapsed_s),
    )
    return services.workers.post(member, asked.path, body, headers)
