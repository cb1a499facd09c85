"""A request's usage from `open` to `close`: the figures so far, and the usage event made from them."""

import time
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from gateway.answer_cache.entry import CachedAnswer
from gateway.clock import ms_between
from gateway.domain.prices.price_book import RequestPrice
from gateway.http.errors import GatewayError
from gateway.inference.measure import BYTES_PER_TOKEN, Measured
from gateway.inference.validate import Accepted
from gateway.limits.reservation import Reservation
from gateway.upstream.streams.foreign import ForeignUsage
from protocol.accounting import Accounting
from protocol.embeddings import EmbeddingsRequest
from protocol.requests import GenerationRequest
from protocol.usage import MAX_DECISION_BYTES, MAX_ERROR_CHARS, PriceLine, StepsMs, UsageEvent, UsageStatus
from router.fleet import Member
from router.in_flight import Trip
from router.policy import Decision, threshold_of

if TYPE_CHECKING:
    from gateway.tracing.spans import RequestTrace

CACHED = "cached"
"""The route reason of a request that went to no member, because its answer came from the cache."""
_NOT_PRICED = RequestPrice("")


class _Way(msgspec.Struct, frozen=True):
    """The content of the event's `decision`. tried: the replicas, in the order in which they were asked."""

    reason: str
    score: float | None
    threshold: float
    pool: str
    tried: tuple[str, ...]


@lru_cache(maxsize=1024)
def _describe(reason: str, score: float | None, threshold: float, pool: str, tried: tuple[str, ...]) -> str:
    """Cached, because most requests that name their model go the same few ways."""
    text = msgspec.json.encode(_Way(reason, score, threshold, pool, tried))
    if len(text) > MAX_DECISION_BYTES:
        text = msgspec.json.encode(_Way(reason, score, threshold, pool, ()))
    return text.decode()


class UsageRecord(msgspec.Struct, eq=False):
    """A Struct, because it has more attributes than Python shares between an ordinary class's objects."""

    accepted: Accepted[GenerationRequest | EmbeddingsRequest]
    measured: Measured
    reservation: Reservation
    trace: "RequestTrace | None" = None
    is_sent: bool = False
    """A member has the request and has not reported it as waiting, so its prompt is being computed."""
    is_delivered: bool = False
    """Part of the answer was sent to the client."""
    is_cached_answer: bool = False
    pool: str = ""
    model_id: str = ""
    reason: str = "unavailable"
    overflow: Reservation | None = None
    """The reservation in the overflow's budget, if the request goes to an overflow."""
    worker_id: str | None = None
    member: Member | None = None
    """The member that the answer comes from, as far as is known."""
    trip: Trip | None = None
    """The try under way, as counted in its member's in-flight requests."""
    model_version: str = ""
    adapter_id: str | None = None
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    finish_reason: str | None = None
    ttft_ms: float | None = None
    _error_code: str | None = None
    _error_message: str | None = None
    _tried: tuple[str, ...] = ()
    _admit_ms: float = 0.0
    _sent_ms: float | None = None
    _is_accounted: bool = False
    _is_answered: bool = False
    _is_free: bool = False
    _price: RequestPrice = _NOT_PRICED

    def __post_init__(self) -> None:
        wanted = self.measured.pools[0]
        self.pool, self.model_id = wanted.name, wanted.model_id
        self.model_version = self.model_id
        self.prompt_tokens = self.measured.prompt_tokens
        self._admit_ms = self.elapsed_ms()
        self._price = self._find_price()

    @property
    def request_id(self) -> str:
        return self.accepted.request_id

    @property
    def shown_model(self) -> str:
        """The model's name in the answer: the adapter's name as its tenant knows it, otherwise the model's id."""
        name = self.measured.adapter_name
        return name if self.adapter_id is not None and name is not None else self.model_id

    @property
    def served_by(self) -> tuple[str, str, str]:
        """Pool, model and tier, for metrics."""
        return self.pool, self.model_id, self.accepted.tier.name

    def note_decision(self, decision: Decision) -> None:
        self.pool, self.reason = decision.pool, decision.reason
        self.model_version = decision.model_id
        adapter_id = self.measured.adapter_id if decision.adapter is not None else None
        if decision.model_id != self.model_id or adapter_id != self.adapter_id:
            self.model_id, self.adapter_id = decision.model_id, adapter_id
            self._price = self._find_price()

    def note_member(self, member: Member, *, num_told: int = 0) -> None:
        """Another try begins. Of the previous try only the `num_told` tokens count. The caller must call `end_trip`."""
        self._follow(member, self.note_asked(member), num_told=num_told)

    def note_asked(self, member: Member) -> Trip:
        """This member is asked as well. The caller must end the trip unless it calls `follow` with it."""
        self._tried = (*self._tried, member.worker_id)
        return member.in_flight.send(time.monotonic())

    def follow(self, member: Member, trip: Trip) -> None:
        """A member that was asked as well was faster. The previous member is given up, and none of its tokens count."""
        if self.trip is not None:
            self.trip.give_up(time.monotonic())
        self._follow(member, trip, num_told=0)
        self.is_sent = True

    def end_trip(self) -> None:
        if self.trip is not None:
            self.trip.end()

    def _follow(self, member: Member, trip: Trip, *, num_told: int) -> None:
        self.member, self.worker_id, self.trip = member, member.worker_id, trip
        self.is_sent = num_told > 0
        self._is_answered = False
        self.completion_tokens = num_told
        if member.load is not None and member.load.model_version:
            self.model_version = f"{self.model_id}@{member.load.model_version}"

    def note_sent(self, elapsed_ms: float) -> None:
        self.is_sent = True
        self._sent_ms = elapsed_ms

    def note_error(self, error: Exception) -> None:
        """Keep the code and message that the client is told. For an internal error keep only the exception's type,
        since its message could quote anything."""
        if isinstance(error, GatewayError):
            self._error_code, self._error_message = error.code, error.message[:MAX_ERROR_CHARS]
        else:
            self._error_code, self._error_message = GatewayError.code, type(error).__name__

    def note_tokens(self, num_tokens: int) -> bool:
        """Note that `num_tokens` tokens of the answer have come so far. Returns whether they are the first."""
        is_first = self.ttft_ms is None and num_tokens > 0
        if not self._is_answered and num_tokens > self.completion_tokens and self.trip is not None:
            self._is_answered = True
            self.trip.note_first_token(time.monotonic())
        if is_first:
            self.ttft_ms = self.elapsed_ms()
        self.completion_tokens = num_tokens
        return is_first

    def note_accounting(self, accounting: Accounting) -> None:
        """Our own worker's figures are exact, and replace the estimates."""
        self.prompt_tokens = accounting.prompt_tokens
        self.cached_prompt_tokens = accounting.cached_prompt_tokens
        self.completion_tokens = accounting.completion_tokens
        self.queue_ms, self.compute_ms = accounting.queue_ms, accounting.compute_ms
        self._is_accounted = True
        self.worker_id, self.finish_reason = accounting.worker_id, accounting.finish_reason

    def note_foreign_usage(self, usage: ForeignUsage | None) -> None:
        """Take a foreign server's figures. Without them our own count of the prompt and of the events stands."""
        if usage is not None:
            self.prompt_tokens = usage.prompt_tokens
            self.cached_prompt_tokens = min(usage.cached_tokens, usage.prompt_tokens)
            if usage.completion_tokens is not None:
                self.completion_tokens = usage.completion_tokens

    def note_text(self, num_bytes: int) -> None:
        """Estimate the tokens of a whole answer whose server did not report them, in the same way as for prompts."""
        if num_bytes:
            most = max(1, self.measured.max_completion_tokens)
            self.completion_tokens = min(most, -(-num_bytes // BYTES_PER_TOKEN))

    def note_cached(self, answer: CachedAnswer) -> None:
        """The answer came from the cache and nothing is computed; the token counts are those of the cached answer."""
        self.pool, self.model_id, self.model_version = answer.pool, answer.model_id, answer.model_version
        self.adapter_id, self.reason = answer.adapter_id, CACHED
        self.prompt_tokens = self.cached_prompt_tokens = answer.prompt_tokens
        self.completion_tokens, self.finish_reason = answer.completion_tokens, answer.finish_reason
        self.is_cached_answer = True
        self.ttft_ms = self.elapsed_ms()
        self._price = self._find_price()

    def most_nanousd(self) -> int:
        """The most that the request may cost in the pool that it goes to now."""
        measured = self.measured
        return self._price.most_nanousd(
            prompt_tokens=measured.prompt_tokens, completion_tokens=measured.max_completion_tokens
        )

    def price_lines(self) -> tuple[PriceLine, ...]:
        if self._is_free:
            return ()
        return self._price.lines(
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            completion_tokens=self.completion_tokens,
            is_cached_answer=self.is_cached_answer,
        )

    def waive(self) -> None:
        """The client was told that the request failed, so it costs nothing, whatever was computed."""
        self._is_free = True
        if not self.is_delivered:
            self.drop_usage()

    def drop_usage(self) -> None:
        """Count no tokens: nothing was computed for this client."""
        self.prompt_tokens = self.cached_prompt_tokens = self.completion_tokens = 0

    def event(self, status: UsageStatus) -> UsageEvent:
        accepted, elapsed_ms, lines = self.accepted, self.elapsed_ms(), self.price_lines()
        return UsageEvent(
            request_id=accepted.request_id,
            client_request_id=accepted.client_request_id,
            worker_id=self.worker_id,
            tenant_id=accepted.principal.tenant_text,
            key_id=accepted.principal.key_text,
            user_id=accepted.request.user,
            session_id=accepted.session_id,
            model_version=self.model_version,
            pool=self.pool,
            requested_model=accepted.request.model,
            route_reason=self.reason,
            complexity=self.measured.route_request.complexity,
            adapter_id=self.adapter_id,
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            completion_tokens=self.completion_tokens,
            ttft_ms=self.ttft_ms,
            total_latency_ms=elapsed_ms,
            queue_ms=self.queue_ms,
            worker_compute_ms=self.compute_ms,
            finish_reason=self.finish_reason,
            status=status,
            tier=accepted.tier.name,
            price_version=self._price.version,
            cost_nanousd=sum([line.amount_nanousd for line in lines]),
            timestamp=accepted.received_at,
            endpoint=accepted.endpoint or accepted.path,
            error_code=self._error_code,
            error_message=self._error_message,
            num_attempts=len(self._tried),
            steps_ms=StepsMs(
                authenticate=accepted.authenticate_ms,
                admit=self._admit_ms,
                # A foreign member does not report how long the request waited in its queue.
                queue=None
                if self._sent_ms is None or not self._is_accounted
                else round(self._sent_ms + self.queue_ms, 3),
                first_token=self.ttft_ms,
                end=elapsed_ms,
            ),
            decision=self._describe_decision(),
            price_lines=lines,
            batch_id=accepted.batch_id,
            cached_answer=self.is_cached_answer,
        )

    def elapsed_ms(self) -> float:
        return ms_between(self.accepted.received_monotonic_s, time.monotonic())

    def _describe_decision(self) -> str:
        measured = self.measured
        score = measured.route_request.complexity if measured.is_scored else None
        threshold = threshold_of(measured.route_request, measured.policy)
        return _describe(self.reason, score, threshold, self.pool, self._tried)

    def _find_price(self) -> RequestPrice:
        # The price at arrival holds for the whole request.
        accepted = self.accepted
        return accepted.catalog.prices.price_of(
            self.model_id,
            adapter_id=self.adapter_id,
            tier=accepted.tier.name,
            is_batch=accepted.batch_id is not None,
            now=accepted.received_at,
        )
