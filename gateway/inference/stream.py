"""One try at one replica: bytes pass through to the client and are counted on the way; the accounts are closed before
the last byte."""

import time
from typing import cast

from gateway.inference.accounts import Accounts
from gateway.inference.exchange import Exchange
from gateway.inference.failures import note_failure
from gateway.inference.hedge import first_to_speak
from gateway.inference.member_call import MemberCall, MemberStream, failure_of, post
from gateway.inference.usage_record import UsageRecord
from gateway.services import Services
from gateway.upstream.client import Answer, MemberFailed
from gateway.upstream.streams.own import ToldIds
from gateway.upstream.streams.whole_answer import read_whole
from protocol.accounting import DONE_EVENT
from protocol.foreign_json import UNREADABLE
from protocol.requests import GenerationRequest
from router.balance import order
from router.fleet import Member
from router.hedge import late_after_ms, spare
from router.in_flight import Trip
from router.policy import Decision

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Relay:
    """Relays a completion. `record` must be a completion's."""

    def __init__(self, services: Services, exchange: Exchange, record: UsageRecord, accounts: Accounts) -> None:
        self._services = services
        self._exchange = exchange
        self._request = cast(GenerationRequest, record.accepted.request)
        self._record = record
        self._accounts = accounts
        self._told = ToldIds()
        self._version: str | None = None
        """The version of the weights that produced the tokens in `_told`."""

    def num_kept(self, member: Member) -> int:
        is_able = member.engine == "tiergate" and _version(member) is not None and _version(member) == self._version
        return self._told.num_tokens if is_able else 0

    async def run(self, decision: Decision, member: Member) -> None:
        """Raises MemberFailed or MemberRefused. Unless `record.is_delivered`, another replica may start over."""
        record = self._record
        if not self.num_kept(member):
            self._told = ToldIds()
        self._version = _version(member)
        call = MemberCall(self._services, record, decision, member, self._told)
        late_s = self._late_s(decision, member)
        try:
            if late_s is None:
                await self._send(call, decision)
            else:
                try:
                    call = await self._quickest(call, decision, late_s)
                except MemberFailed:
                    # The tokens told so far were never sent to the client.
                    self._told = ToldIds()
                    raise
            if self._request.stream:
                await self._stream(call)
            elif call.answer.is_event_stream and call.member.engine == "tiergate":
                await self._collect(call)
            else:
                await pass_whole(call.answer, decision, call.member, self._exchange, record, self._accounts)
        finally:
            call.close()

    async def _send(self, call: MemberCall, decision: Decision) -> None:
        note_sending(self._services, self._record)
        await call.send()
        note_route(self._exchange, self._record, decision)

    def _late_s(self, decision: Decision, member: Member) -> float | None:
        """Seconds without a first token after which a second replica is asked; None if none may be."""
        shows_tokens = self._request.stream or member.engine == "tiergate"
        if not self._record.accepted.tier.is_hedged or not shows_tokens or self._told.num_tokens:
            return None
        pool = self._services.registry.fleet.pools.get(decision.pool)
        if pool is None or pool.overflow_of is not None:
            return None
        late_ms = late_after_ms(member, decision.members, time.monotonic())
        return None if late_ms is None else late_ms / 1000

    async def _quickest(self, first: MemberCall, decision: Decision, late_s: float) -> MemberCall:
        record, services = self._record, self._services
        others: list[tuple[MemberCall, Trip]] = []

        def ask_another() -> MemberCall | None:
            member = self._spare(decision, first.member)
            if member is None:
                return None
            call = MemberCall(services, record, decision, member, ToldIds())
            others.append((call, record.note_asked(member)))
            return call

        def note_failed(call: MemberCall, error: MemberFailed) -> None:
            note_failure(services, decision.pool, call.member, error, is_delivered=False)
            if call is first:
                self._follow(*others[0], decision)

        try:
            quickest = await first_to_speak(
                first, self._speak(first, decision), ask_another, late_s=late_s, note_failed=note_failed
            )
            if others:
                services.metrics.hedges.add((decision.pool, "lost" if quickest is first else "won"))
            if quickest is not first:
                self._follow(*others[0], decision)
                self._note_progress(quickest)
            return quickest
        finally:
            for _, trip in others:
                if trip is not record.trip:
                    trip.end()

    def _follow(self, call: MemberCall, trip: Trip, decision: Decision) -> None:
        """From now on the answer comes from this call."""
        record, member = self._record, call.member
        if record.trip is trip:
            return
        self._told, self._version = call.told, _version(member)
        if record.trace is not None:
            record.trace.end_call("late")
            record.trace.begin_call(member, model=decision.adapter or member.model_name, request=self._request)
        record.follow(member, trip)
        note_route(self._exchange, record, decision)

    def _spare(self, decision: Decision, first: Member) -> Member | None:
        services, route = self._services, self._record.measured.route_request
        pool, state = services.registry.fleet.pools.get(decision.pool), services.gates.states.get(decision.pool)
        if pool is None or (state is not None and (state.is_saturated or state.is_shedding)):
            return None
        candidates = order(pool, request_id=self._record.request_id, adapter=decision.adapter, affinity=route.affinity)
        found = spare(candidates, first, services.gates.thresholds)
        budget, num_under_way = services.registry.retry_budget(decision.pool), services.metrics.num_in_flight
        return found if found is not None and budget.spend(time.monotonic(), num_under_way=num_under_way) else None

    async def _speak(self, call: MemberCall, decision: Decision) -> None:
        """As `call.speak`, but meanwhile the client is told that its request is waiting."""
        await self._send(call, decision)
        while not (call.stream.num_tokens or call.stream.is_done):
            passed_on = await self._next(call)
            if passed_on and self._request.stream and not (call.early or call.stream.has_content):
                await self._pass_on(passed_on, call)
            else:
                call.early += passed_on
            self._check(call)

    async def _stream(self, call: MemberCall) -> None:
        stream = call.stream
        if call.early:
            await self._pass_on(call.early, call)
        while not stream.is_done:
            passed_on = await self._next(call)
            if passed_on:
                # Passed on before any error that follows is raised: another replica continues after all told tokens.
                await self._pass_on(passed_on, call)
            self._check(call)
        self._note_figures(stream)
        await self._exchange.keep()
        await self._accounts.close("ok")
        if not self._exchange.is_started:
            await self._exchange.start(200, STREAM_HEADERS)
        await self._exchange.finish(DONE_EVENT)

    async def _pass_on(self, passed_on: bytes, call: MemberCall) -> None:
        exchange, record = self._exchange, self._record
        if not exchange.is_started:
            await exchange.start(200, STREAM_HEADERS)
        record.is_delivered = record.is_delivered or call.stream.has_content
        await exchange.send(passed_on)

    async def _collect(self, call: MemberCall) -> None:
        """Deliver a whole answer that one of our own workers sent as an event stream, telling its tokens on the way."""
        parts = [call.early]
        while not call.stream.is_done:
            parts.append(await self._next(call))
            self._check(call)
        self._note_figures(call.stream)
        body = b"".join(parts).removeprefix(b"data: ").removesuffix(b"\n\n")
        await deliver(body, self._exchange, self._record, self._accounts)

    async def _next(self, call: MemberCall) -> bytes:
        """The next bytes for the client; call `_check` afterwards. Raises MemberFailed."""
        passed_on = await call.next()
        self._note_progress(call)
        return passed_on

    def _check(self, call: MemberCall) -> None:
        """Raises MemberFailed or MemberRefused, or UpstreamRefused in mid-answer if no tokens were told."""
        call.check(is_delivered=self._record.is_delivered and not self._told.num_tokens)

    def _note_progress(self, call: MemberCall) -> None:
        record, stream = self._record, call.stream
        record.is_sent = stream.num_tokens > 0 or not stream.is_waiting
        if stream.num_tokens != record.completion_tokens and record.note_tokens(stream.num_tokens):
            ttft_ms = record.elapsed_ms()
            self._services.metrics.observe_ttft(record.served_by, ttft_ms / 1000)
            target_ms = record.accepted.tier.ttft_target_ms
            if target_ms is not None:
                gate = self._services.gates.of(record.pool)
                gate.note_first_token(time.monotonic(), ttft_ms=ttft_ms, target_ms=target_ms)

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
    """Handle an answer that is not a stream: read it whole, note its figures, and only then pass it on. Raises
    MemberFailed or MemberRefused."""
    body = await answer.read()
    is_own = member.engine == "tiergate"
    model = None if is_own or (decision.adapter or member.model_name) == record.shown_model else record.shown_model
    try:
        whole = read_whole(body, answer, is_own=is_own, model=model, most_tokens=record.measured.most_tokens)
    except (*UNREADABLE, TypeError) as error:
        raise MemberFailed(f"{member.worker_id} sent no JSON that we understand: {error}") from error
    if whole.is_error:
        raise failure_of(body, member)
    if whole.accounting is not None:
        record.note_accounting(whole.accounting)
    else:
        record.finish_reason = whole.finish_reason
        record.note_foreign_usage(whole.usage)
        record.note_text(whole.num_text_bytes)
    await deliver(whole.body, exchange, record, accounts)


async def deliver(body: bytes, exchange: Exchange, record: UsageRecord, accounts: Accounts) -> None:
    await exchange.keep(body)
    record.is_delivered = True
    await accounts.close("ok")
    await exchange.answer(200, {"content-type": "application/json"}, body)


def note_route(exchange: Exchange, record: UsageRecord, decision: Decision) -> None:
    """Set the headers that tell the client what actually serves the request, and why."""
    headers = exchange.extra_headers
    headers["x-tiergate-model"] = decision.model_id
    headers["x-tiergate-pool"] = decision.pool
    headers["x-tiergate-route"] = decision.reason
    if record.measured.is_scored:
        headers["x-tiergate-complexity"] = f"{decision.complexity:.3f}"
    if decision.adapter is not None and record.measured.adapter_name is not None:
        headers["x-tiergate-adapter"] = record.measured.adapter_name


async def send_to(member: Member, body: bytes, services: Services, record: UsageRecord) -> Answer:
    """As `post`, for a request without hedging; also notes the time at which it is sent."""
    note_sending(services, record)
    return await post(member, body, services, record)


def note_sending(services: Services, record: UsageRecord) -> None:
    elapsed_ms = record.elapsed_ms()
    services.metrics.observe_preparation(elapsed_ms / 1000)
    record.note_sent(elapsed_ms)


def _version(member: Member) -> str | None:
    """The version of the member's weights."""
    return member.load.model_version if member.load is not None else None
