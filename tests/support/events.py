"""Usage events for tests."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from protocol.usage import PriceLine, UsageEvent, UsageStatus

_EVENT = UsageEvent(
    request_id="r1",
    tenant_id="acme",
    key_id="key-1",
    user_id="user-1",
    model_version="tiergate-demo-small@1",
    pool="small",
    requested_model="auto",
    route_reason="simple",
    complexity=0.25,
    prompt_tokens=12,
    completion_tokens=30,
    ttft_ms=41.5,
    total_latency_ms=180.25,
    finish_reason="stop",
    status="ok",
    tier="enterprise",
    price_version="1",
    cost_nanousd=4200,
    timestamp=datetime(2026, 3, 4, 5, 6, 7, 891234, tzinfo=UTC),
)


def make_event(request_id: str, **changes: Any) -> UsageEvent:
    return msgspec.structs.replace(_EVENT, request_id=request_id, **changes)


class OpenEvent:
    """A request under way, as the outbox sees it, with the progress that its event states."""

    def __init__(self, event: UsageEvent) -> None:
        self._event = event
        self.num_asked = 0

    @property
    def request_id(self) -> str:
        return self._event.request_id

    @property
    def completion_tokens(self) -> int:
        return self._event.completion_tokens

    def price_lines(self) -> tuple[PriceLine, ...]:
        return self._event.price_lines

    def event(self, status: UsageStatus) -> UsageEvent:
        self.num_asked += 1
        return msgspec.structs.replace(self._event, status=status)

    def go_on(self, *, completion_tokens: int, cost_nanousd: int) -> None:
        """Advance the request. cost_nanousd: the price of the output; nothing else costs anything."""
        line = PriceLine(kind="output", quantity=1, unit_price_nanousd=cost_nanousd, amount_nanousd=cost_nanousd)
        self._event = msgspec.structs.replace(
            self._event, completion_tokens=completion_tokens, cost_nanousd=cost_nanousd, price_lines=(line,)
        )
