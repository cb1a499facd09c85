"""One try at one replica: bytes through to the client, counted on their way; accounts closed before the last byte."""

import time
from typing import cast

import msgspec

from gateway.http.errors import UpstreamRefused
from gateway.inference.accounts import Accounts
from gateway.inference.exchange import Exchange
from gateway.inference.usage_record import UsageRecord
from gateway.services import Services
from gateway.upstream.client import Answer, MemberFailed, MemberRefused
from gateway.upstream.member_body import member_body, member_headers
from gateway.upstream.streams.events import BrokenStream
from gateway.upstream.streams.foreign import ForeignStream
from gateway.upstream.streams.own import ToldIds, WorkerStream
from gateway.upstream.streams.whole import read_whole
from protocol.accounting import DONE_EVENT
from protocol.errors import ErrorBody
from protocol.load import LOAD_HEADER
from protocol.requests import GenerationRequest
from router.fleet import Member
from router.policy import Decision

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
_LOAD_HEADER = LOAD_HEADER.encode()
_ERROR = msgspec.json.Decoder(ErrorBody)
MemberStream = WorkerStream | ForeignStream


class Relay:
    """The record is a completion's."""

    def __init__(self, services: Services, exchange: Exchange, record: UsageRecord, accounts: Accounts) -> None:
        self._services = services
        self._exchange = exchange
        self._request = cast(GenerationRequest, record.accepted.request)
        self._record = record
        self._accounts = accounts
        self._told = ToldIds()
        self._version: str | None = None
        """Of the weights that made what was told."""

    def num_kept(self, member: Member) -> int:
        is_able = member.engine == "tiergate" and member.load is not None and member.load.model_version == self._version
        return self._told.num_tokens if is_able else 0

    async def run(self, decision: Decision, member: Member) -> None:
        """Raises MemberFailed or MemberRefused; `record.is_delivered` tells whether another replica may follow."""
        record = self._record
        if not self.num_kept(member):
            self._told = ToldIds()
        self._version = member.load.model_version if member.load is not None else None
        begun = self._told.of_answers(record.measured.num_choices) if self._told.num_tokens else None
        body = member_body(
            record.accepted.body,
            self._request,
            member,
            model=decision.adapter or member.model_name,
            max_tokens=record.measured.route_request.max_tokens,
            priority=record.accepted.tier.priority,
            cache_salt=record.accepted.principal.tenant_text,
            continue_from=begun,
        )
        answer = await send_to(member, body, self._services, record, shows_life=member.engine == "tiergate")
        try:
            note_route(self._exchange, record, decision)
            if self._request.stream:
                await self._stream(answer, decision, member)
            elif answer.is_event_stream:
                await self._collect(answer, member)
            else:
                await pass_whole(answer, decision, member, self._exchange, record, self._accounts)
        except BrokenStream as error:
            raise MemberFailed(f"{member.worker_id}: {error}") from error
        finally:
            answer.close()

    async def _stream(self, answer: Answer, decision: Decision, member: Member) -> None:
        stream: MemberStream
        if member.engine == "tiergate":
            stream = WorkerStream(told=self._told)
        else:
            options = self._request.stream_options
            wants_usage = options is not None and options.include_usage
            sent_model = decision.adapter or member.model_name
            stream = ForeignStream(wants_usage=wants_usage, model_at_member=sent_model, model=self._record.shown_model)
        exchange, record = self._exchange, self._record
        while not stream.is_done:
            passed_on = await self._next(answer, stream, member)
            if passed_on:
                if not exchange.is_started:
                    await exchange.start(200, _HEADERS)
                record.is_delivered = record.is_delivered or stream.has_content
                await exchange.send(passed_on)
        self._note_figures(stream)
        await self._accounts.close("ok")
        if not exchange.is_started:
            await exchange.start(200, _HEADERS)
        await exchange.finish(DONE_EVENT)

    async def _collect(self, answer: Answer, member: Member) -> None:
        """A whole answer of a worker of ours, which told its tokens while it was made."""
        stream = WorkerStream(is_whole=True, told=self._told)
        parts = []
        while not stream.is_done:
            parts.append(await self._next(answer, stream, member))
        self._note_figures(stream)
        body = b"".join(parts).removeprefix(b"data: ").removesuffix(b"\n\n")
        await deliver(body, self._exchange, self._record, self._accounts)

    async def _next(self, answer: Answer, stream: MemberStream, member: Member) -> bytes:
        """What has come for the client. Raises MemberFailed, MemberRefused or, in mid-answer, UpstreamRefused."""
        record = self._record
        chunk = await answer.next_chunk()
        passed_on = stream.feed(chunk) if chunk else stream.finish()
        record.is_sent = stream.num_tokens > 0 or not stream.is_waiting
        if stream.num_tokens != record.completion_tokens and record.note_tokens(stream.num_tokens):
            ttft_ms = record.elapsed_ms()
            self._services.metrics.observe_ttft(record.served_by, ttft_ms / 1000)
            target_ms = record.accepted.tier.ttft_target_ms
            if target_ms is not None:
                gate = self._services.gates.of(record.pool)
                gate.note_first_token(time.monotonic(), ttft_ms=ttft_ms, target_ms=target_ms)
        if stream.error is not None:
            raise _failure(stream.error, member, is_delivered=record.is_delivered and not self._told.num_tokens)
        if stream.is_done:
            answer.end()
        elif not chunk:
            raise MemberFailed(f"{member.worker_id} ended its stream before [DONE]")
        return passed_on

    def _note_figures(self, stream: MemberStream) -> None:
        if stream.accounting is not None:
            self._record.note_accounting(stream.accounting)
        else:
            self._record.finish_reason = stream.finish_reason
            self._record.note_foreign_usage(stream.usage)


async def pass_whole(
    answer: Answer,
    decision: Decision,
    member: Member,
    exchange: Exchange,
    record: UsageRecord,
    accounts: Accounts,
) -> None:
    """An answer that is no stream: read whole, its figures noted, and only then passed on. Raises MemberFailed."""
    body = await answer.read()
    is_own = member.engine == "tiergate"
    model = None if is_own or (decision.adapter or member.model_name) == record.shown_model else record.shown_model
    try:
        whole = read_whole(body, answer, is_own=is_own, model=model)
    except (msgspec.MsgspecError, TypeError) as error:
        raise MemberFailed(f"{member.worker_id} sent no JSON that we understand: {error}") from error
    if whole.accounting is not None:
        record.note_accounting(whole.accounting)
    else:
        record.finish_reason = whole.finish_reason
        record.note_foreign_usage(whole.usage)
    await deliver(whole.body, exchange, record, accounts)


async def deliver(body: bytes, exchange: Exchange, record: UsageRecord, accounts: Accounts) -> None:
    record.is_delivered = True
    await accounts.close("ok")
    await exchange.answer(200, {"content-type": "application/json"}, body)


def note_route(exchange: Exchange, record: UsageRecord, decision: Decision) -> None:
    """The headers that tell what really serves the request, and why."""
    headers = exchange.extra_headers
    headers["x-tiergate-model"] = decision.model_id
    headers["x-tiergate-pool"] = decision.pool
    headers["x-tiergate-route"] = decision.reason
    if record.measured.is_scored:
        headers["x-tiergate-complexity"] = f"{decision.complexity:.3f}"
    if decision.adapter is not None and record.measured.adapter_name is not None:
        headers["x-tiergate-adapter"] = record.measured.adapter_name


async def send_to(
    member: Member, body: bytes, services: Services, record: UsageRecord, *, shows_life: bool = False
) -> Answer:
    """As `WorkerClient.post`; to our own workers with the tenant, its weight, and how long it may still take."""
    accepted, elapsed_s = record.accepted, record.elapsed_ms() / 1000
    services.metrics.observe_preparation(elapsed_s)
    headers: dict[str, str] = {}
    if member.engine == "tiergate":
        headers = member_headers(
            request_id=accepted.request_id,
            tenant_id=accepted.principal.tenant_text,
            weight=accepted.tier.weight,
            deadline_s=max(0.001, services.settings.request_timeout_s - elapsed_s),
            shown_model=record.shown_model,
        )
    if record.trace is not None:
        headers |= record.trace.headers()
    record.note_sent(elapsed_s * 1000)
    answer = await services.workers.post(member, accepted.path, body, headers, shows_life=shows_life)
    load = answer.header(_LOAD_HEADER)
    if load is not None and member.engine == "tiergate":
        services.registry.note_load(member.worker_id, load)
    return answer


def _failure(body: bytes, member: Member, *, is_delivered: bool) -> Exception:
    """What a stream's error event means: to the client its own words, unless another replica may still do better."""
    if is_delivered:
        return UpstreamRefused(502, body)
    try:
        is_refusal = _ERROR.decode(body).error.type == "invalid_request_error"
    except msgspec.MsgspecError:
        is_refusal = False
    if is_refusal:
        return MemberRefused(400, body)
    return MemberFailed(f"{member.worker_id} gave the request up: {body[:200]!r}", is_reachable=True, is_fault=True)
