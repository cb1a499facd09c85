"""What a gateway keeps of each scope: bounded in number, and never dropped while it is in use."""

from uuid import uuid4

import pytest

from gateway.domain.limits import LimitScope
from gateway.limits import local
from gateway.limits.local import LocalLimiter
from tests.support.clocks import Clock
from tests.support.limiters import admission
from tests.support.tiers import make_tier

WINDOW_S = 60.0
MAX_ACCOUNTS = 4


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(local, "MAX_ACCOUNTS", MAX_ACCOUNTS)
    return Clock()


def test_a_new_account_is_kept_where_all_others_are_in_use(clock: Clock) -> None:
    limiter, tier = LocalLimiter(incarnation="i", window_s=WINDOW_S, clock=clock), make_tier()
    live = [limiter.enter(admission(uuid4(), tier)) for _ in range(MAX_ACCOUNTS)]
    for _ in range(3):
        asked = admission(uuid4(), tier, LimitScope("user:a", tier))
        live.append(limiter.enter(asked))
        assert limiter.accounts_of(asked) == live[-1].accounts
        assert [account.num_live for account in limiter.accounts_of(asked)] == [1, 1]
    for entry in live:
        limiter.close(entry, 1, 0)
    for _ in range(2 * MAX_ACCOUNTS):
        clock.now += WINDOW_S + 1
        limiter.close(limiter.enter(admission(uuid4(), tier)), 1, 0)
    assert len(limiter.tenants()) <= MAX_ACCOUNTS


def test_accounts_that_are_only_looked_at_are_bounded_too(clock: Clock) -> None:
    limiter, tier = LocalLimiter(incarnation="i", window_s=WINDOW_S, clock=clock), make_tier()
    for _ in range(10 * MAX_ACCOUNTS):
        limiter.accounts_of(admission(uuid4(), tier))
    assert len(limiter.tenants()) <= MAX_ACCOUNTS
