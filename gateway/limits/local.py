"""The limiter of last resort: this process alone, at its share of the limits, while Redis is away.

It is told of every admission all the time, so that it does not start from nothing when it takes over.
"""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from gateway.limits.refusal import refuse
from gateway.limits.reservation import Admission
from gateway.limits.standing import Standing

MAX_TENANTS = 10_000


@dataclass(slots=True)
class _Account:
    entries: deque[tuple[float, str, int]] = field(default_factory=deque)
    """(admitted at, request id, tokens), oldest first."""
    tokens: int = 0
    live: dict[str, Admission] = field(default_factory=dict)


class LocalLimiter:
    def __init__(self, *, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._accounts: OrderedDict[UUID, _Account] = OrderedDict()
        self.num_gateways = 1
        """How many share the limits, as last heard."""

    def admit(self, admission: Admission) -> Standing:
        """Raises LimitReached at this gateway's share of requests, tokens and concurrency."""
        now = self._clock()
        account = self._account(admission.tenant_id, now)
        tier = admission.tier
        standing = self._standing(account, now)
        if len(account.entries) + 1 > self._share(tier.requests_per_minute):
            wait_s = account.entries[0][0] + self._window_s - now if account.entries else self._window_s
            raise refuse(admission, standing, "requests_per_minute", retry_after_s=wait_s)
        if account.tokens + admission.tokens > self._share(tier.tokens_per_minute):
            raise refuse(admission, standing, "tokens_per_minute", retry_after_s=self._window_s)
        if len(account.live) + 1 > self._share(tier.concurrency):
            raise refuse(admission, standing, "concurrency", retry_after_s=1)
        self._add(account, admission, now)
        return self._standing(account, now)

    def note(self, admission: Admission) -> None:
        """Count what Redis admitted."""
        now = self._clock()
        self._add(self._account(admission.tenant_id, now), admission, now)

    def release(self, admission: Admission) -> None:
        account = self._accounts.get(admission.tenant_id)
        if account is not None:
            account.live.pop(admission.request_id, None)

    def reserved(self, tenant_id: UUID) -> tuple[int, int]:
        """Tokens and cost of what is under way here, which no ledger knows yet."""
        account = self._accounts.get(tenant_id)
        live = account.live.values() if account else ()
        return sum(each.tokens for each in live), sum(each.cost_nanousd for each in live)

    def live_requests(self) -> dict[UUID, list[str]]:
        """What is under way at this gateway, by tenant."""
        return {tenant_id: list(account.live) for tenant_id, account in self._accounts.items() if account.live}

    def tenants(self) -> list[UUID]:
        return list(self._accounts)

    def _account(self, tenant_id: UUID, now: float) -> _Account:
        account = self._accounts.setdefault(tenant_id, _Account())
        self._accounts.move_to_end(tenant_id)
        while account.entries and account.entries[0][0] <= now - self._window_s:
            account.tokens -= account.entries.popleft()[2]
        if len(self._accounts) > MAX_TENANTS:
            self._drop_idlest()
        return account

    def _drop_idlest(self) -> None:
        idle = next((tenant_id for tenant_id, account in self._accounts.items() if not account.live), None)
        if idle is not None:
            del self._accounts[idle]

    def _add(self, account: _Account, admission: Admission, now: float) -> None:
        account.entries.append((now, admission.request_id, admission.tokens))
        account.tokens += admission.tokens
        account.live[admission.request_id] = admission

    def _standing(self, account: _Account, now: float) -> Standing:
        reset_s = account.entries[-1][0] + self._window_s - now if account.entries else 0.0
        return Standing(len(account.entries), account.tokens, reset_s, is_local=True)

    def _share(self, limit: int | None) -> float:
        if limit is None:
            return math.inf
        return max(min(1, limit), limit // self.num_gateways)
