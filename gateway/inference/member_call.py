"""One completion sent to one member, from the request to the end of the answer. The answer is read here and passed on
elsewhere."""

import msgspec

from gateway.inference.refusals import as_broken_off
from gateway.inference.usage_record import UsageRecord
from gateway.inference.validate import AcceptedGeneration
from gateway.services import Services
from gateway.upstream.client import Answer, MemberFailed, MemberRefused, adapter_unavailable
from gateway.upstream.member_body import member_body, member_headers
from gateway.upstream.streams.events import BrokenStream
from gateway.upstream.streams.foreign import ForeignStream
from gateway.upstream.streams.own import ToldIds, WorkerStream
from protocol.errors import ADAPTER_UNAVAILABLE, ErrorBody
from protocol.foreign_json import UNREADABLE
from protocol.load import LOAD_HEADER
from router.fleet import Member
from router.policy import Decision

_LOAD_HEADER = LOAD_HEADER.encode()
_ERROR = msgspec.json.Decoder(ErrorBody)
MemberStream = WorkerStream | ForeignStream


class MemberCall:
    """told: the token ids that members have reported for the answer so far. The creator must call `close`."""

    def __init__(
        self, services: Services, record: UsageRecord, decision: Decision, member: Member, told: ToldIds
    ) -> None:
        self._services = services
        self._record = record
        self._decision = decision
        self._accepted: AcceptedGeneration = record.accepted  # type: ignore[assignment]
        self._answer: Answer | None = None
        self._stream: MemberStream | None = None
        self._is_cut = False
        self.member = member
        self.told = told
        self.early = b""
        """Bytes for the client that arrived before `speak` returned."""

    @property
    def answer(self) -> Answer:
        assert self._answer is not None
        return self._answer

    @property
    def stream(self) -> MemberStream:
        if self._stream is None:
            self._stream = self._parser()
        return self._stream

    @property
    def _model(self) -> str:
        """The model's name at the member."""
        return self._decision.adapter or self.member.model_name

    async def send(self) -> None:
        """Returns when the member begins to answer. Raises MemberFailed or MemberRefused."""
        accepted, record, member = self._accepted, self._record, self.member
        body = member_body(
            accepted.body,
            accepted.request,
            member,
            model=self._model,
            max_tokens=record.measured.route_request.max_tokens,
            priority=accepted.tier.priority,
            cache_salt=accepted.principal.tenant_text,
            kept_tokens=record.measured.kept_tokens,
            continue_from=self.told.of_answers(record.measured.num_choices) if self.told.num_tokens else None,
        )
        is_own = member.engine == "tiergate"
        self._answer = await post(member, body, self._services, record, shows_life=is_own)

    def _parser(self) -> MemberStream:
        request, model = self._accepted.request, self._model
        if self.member.engine == "tiergate":
            return WorkerStream(is_whole=not request.stream, told=self.told)
        wants_usage = request.stream_options is not None and request.stream_options.include_usage
        return ForeignStream(
            wants_usage=wants_usage,
            model_at_member=model,
            model=self._record.shown_model,
            most_tokens=self._record.measured.most_tokens,
        )

    async def next(self) -> bytes:
        """The next bytes for the client; call `check` afterwards. Raises MemberFailed."""
        stream, answer = self.stream, self.answer
        chunk = await answer.next_chunk()
        try:
            passed_on = stream.feed(chunk) if chunk else stream.finish()
        except BrokenStream as error:
            raise MemberFailed(f"{self.member.worker_id}: {error}") from error
        if stream.is_done:
            answer.end()
        else:
            self._is_cut = not chunk
        return passed_on

    def check(self, *, is_delivered: bool) -> None:
        """Raises MemberFailed or MemberRefused, or UpstreamRefused when the client has a partial answer that no other
        member can continue (`is_delivered`)."""
        if self.stream.error is not None and is_delivered:
            raise as_broken_off(
                self.stream.error, self.member, sent_model=self._model, shown_model=self._record.shown_model
            )
        if self.stream.error is not None:
            raise failure_of(self.stream.error, self.member)
        if self._is_cut:
            raise MemberFailed(f"{self.member.worker_id} ended its stream before [DONE]")

    async def speak(self) -> None:
        """Send, and read up to the first token. Raises MemberFailed or MemberRefused."""
        await self.send()
        while not (self.stream.num_tokens or self.stream.is_done):
            self.early += await self.next()
            self.check(is_delivered=False)

    def close(self) -> None:
        """If the answer is not complete, this makes the member stop computing it."""
        if self._answer is not None:
            self._answer.close()


async def post(
    member: Member, body: bytes, services: Services, record: UsageRecord, *, shows_life: bool = False
) -> Answer:
    """As `WorkerClient.post`. Our own workers also get the tenant, its weight and the time left until the deadline."""
    accepted = record.accepted
    headers: dict[str, str] = {}
    if member.engine == "tiergate":
        headers = member_headers(
            request_id=accepted.request_id,
            tenant_id=accepted.principal.tenant_text,
            weight=accepted.tier.weight,
            deadline_s=max(0.001, services.settings.request_timeout_s - record.elapsed_ms() / 1000),
            shown_model=record.shown_model,
        )
    if record.trace is not None:
        headers |= record.trace.headers()
    answer = await services.workers.post(member, accepted.path, body, headers, shows_life=shows_life)
    load = answer.header(_LOAD_HEADER)
    if load is not None and member.engine == "tiergate":
        services.registry.note_load(member.worker_id, load)
    return answer


def failure_of(body: bytes, member: Member) -> MemberFailed | MemberRefused:
    """The exception for an error body that came in place of an answer, before anything was delivered. After
    MemberFailed another replica may do better."""
    try:
        error = _ERROR.decode(body).error
    except UNREADABLE:
        error = None
    if error is not None and error.code == ADAPTER_UNAVAILABLE:
        return adapter_unavailable(member)
    if error is not None and error.type == "invalid_request_error":
        return MemberRefused(400, body)
    return MemberFailed(f"{member.worker_id} gave the request up: {body[:200]!r}", is_reachable=True, is_fault=True)
