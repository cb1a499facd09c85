"""A request's usage, from `open` to `close`: what it came to so far, and the event that says so."""

import time

from gateway.domain.prices.price_book import PriceTerms
from gateway.inference.measure import Measured
from gateway.inference.validate import Accepted
from gateway.limits.reservation import Reservation
from gateway.upstream.sse import ForeignUsage
from protocol.accounting import Accounting
from protocol.embeddings import EmbeddingsRequest
from protocol.requests import GenerationRequest
from protocol.usage import UsageEvent, UsageStatus
from router.fleet import Member
from router.policy import Decision


class UsageRecord:
    def __init__(
        self, asked: Accepted[GenerationRequest | EmbeddingsRequest], measured: Measured, reservation: Reservation
    ) -> None:
        self.asked = asked
        self.measured = measured
        self.reservation = reservation
        self.is_delivered = False
        """The client was sent some of the answer."""
        self.pool, self.model_id = measured.pools[0].name, measured.pools[0].model_id
        self.reason: str = "unavailable"
        self.worker_id: str | None = None
        self.model_version = self.model_id
        self.adapter_id: str | None = None
        self.prompt_tokens = measured.prompt_tokens
        self.cached_prompt_tokens = 0
        self.completion_tokens = 0
        self.queue_ms = self.compute_ms = 0.0
        self.finish_reason: str | None = None
        self.ttft_ms: float | None = None

    def note_decision(self, decision: Decision) -> None:
        self.pool, self.model_id, self.reason = decision.pool, decision.model_id, decision.reason
        self.model_version = decision.model_id
        self.adapter_id = self.measured.adapter_id if decision.adapter is not None else None

    def note_member(self, member: Member) -> None:
        self.worker_id = member.worker_id
        if member.load is not None:
            self.model_version = f"{self.model_id}@{member.load.model_version}"

    def note_first_token(self) -> None:
        if self.ttft_ms is None:
            self.ttft_ms = self._elapsed_ms()

    def note_accounting(self, accounting: Accounting) -> None:
        """The worker's figures are the exact ones."""
        self.prompt_tokens = accounting.prompt_tokens
        self.cached_prompt_tokens = accounting.cached_prompt_tokens
        self.completion_tokens = accounting.completion_tokens
        self.queue_ms, self.compute_ms = accounting.queue_ms, accounting.compute_ms
        self.worker_id, self.finish_reason = accounting.worker_id, accounting.finish_reason

    def note_foreign_usage(self, usage: ForeignUsage | None) -> None:
        """A foreign server's figures; without any, our own count of the prompt and of the events stands."""
        if usage is not None:
            self.prompt_tokens = usage.prompt_tokens
            self.cached_prompt_tokens = min(usage.cached_tokens, usage.prompt_tokens)
            self.completion_tokens = usage.completion_tokens

    def cost_nanousd(self) -> int:
        return self._price().cost_nanousd(
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            completion_tokens=self.completion_tokens,
        )

    def drop_usage(self) -> None:
        """Nothing was delivered: nothing is billed."""
        self.prompt_tokens = self.cached_prompt_tokens = self.completion_tokens = 0

    def event(self, status: UsageStatus) -> UsageEvent:
        asked = self.asked
        return UsageEvent(
            request_id=asked.request_id,
            client_request_id=asked.client_request_id,
            worker_id=self.worker_id,
            tenant_id=str(asked.principal.tenant_id),
            key_id=str(asked.principal.key_id),
            user_id=asked.request.user,
            model_version=self.model_version,
            pool=self.pool,
            requested_model=asked.request.model,
            route_reason=self.reason,
            complexity=self.measured.route_request.complexity,
            adapter_id=self.adapter_id,
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            completion_tokens=self.completion_tokens,
            ttft_ms=self.ttft_ms,
            total_latency_ms=self._elapsed_ms(),
            queue_ms=self.queue_ms,
            worker_compute_ms=self.compute_ms,
            finish_reason=self.finish_reason,
            status=status,
            tier=asked.tier.name,
            price_version=self._price().version,
            cost_nanousd=self.cost_nanousd(),
            timestamp=asked.received_at,
        )

    def _price(self) -> PriceTerms:
        # The price at arrival holds for the whole request.
        return self.asked.catalog.prices.price_of(self.model_id, now=self.asked.received_at)

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self.asked.received_monotonic_s) * 1000
