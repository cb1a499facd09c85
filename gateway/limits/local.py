"""The requests that this process itself has asked for, admitted and ended: its only basis for decisions while Redis is
away.

A request is counted here before Redis is asked, and removed if Redis refuses it. So whenever local decisions take over,
they start from everything that may have been admitted. Without Redis each gateway keeps to its share of every limit.
"""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import msgspec

from gateway.domain.limits import Limits
from gateway.limits.commands import Terms
from gateway.limits.refusal import refuse
from gateway.limits.reservation import TENANT, Admission, has_periods
from gateway.limits.standing import Standing

NEW_IN_LEDGER_S = 30.0
"""A request that ended this recently may be missing from the ledger, and is rather counted twice than not at all."""
MAX_ACCOUNTS = 20_000
"""How many accounts are kept, apart from those used in the last minute. An end user's account takes 4 KB."""


class Entry(msgspec.Struct, eq=False, gc=False):
    """A request that was asked for or admitted here. Tokens and cost are the reserved ones until it is closed.

    Python's garbage collector does not see entries: it would scan all entries of the last minute, and stop the event
    loop meanwhile. They never need it, because an account is dropped only without entries.
    """

    admission: Admission
    terms: Terms
    accounts: tuple["Account", ...]
    at: float
    tokens: int
    cost_nanousd: int
    is_live: bool = True
    is_void: bool = False
    """Refused or refunded; counts as if it had never been made."""
    is_known: bool = False
    """Redis has confirmed that it holds the request."""
    closed_at: float = math.inf


@dataclass(slots=True, eq=False)
class Account:
    """The account of one scope. The sums cover entries later than `horizon`, which advances at each access."""

    order: int
    entries: deque[Entry]
    horizon: float = -math.inf
    num_requests: int = 0
    tokens: int = 0
    num_live: int = 0
    live_tokens: int = 0
    live_nanousd: int = 0
    known_tokens: int = 0
    """Of the live ones, those that Redis has confirmed."""
    known_nanousd: int = 0
    closed_tokens: int = 0
    """Sum over all requests that ever ended here, so that the usage since a ledger reading can be computed."""
    closed_nanousd: int = 0
    terms: Terms | None = None
    asked_at: float = -math.inf
    """When Redis was last asked for the usage of the scope's day and month."""
    told: "Told | None" = None
    """Its last answer."""
    looked_at: tuple[int, int] = (0, 0)
    """The closed sums when the ledger was last compared with Redis."""
    registration: int = -1
    """The number of this gateway's registration under which Redis was told that it serves the tenant."""
    alone: "tuple[Account, ...]" = ()
    """The account itself, for requests with no other scope. A tuple for each of them would be one more object for the
    garbage collector."""

    def forget_before(self, horizon: float) -> None:
        self.horizon = horizon
        entries = self.entries
        while entries and (entries[0].at <= horizon or entries[0].is_void):
            entry = entries.popleft()
            if not entry.is_void:
                self.num_requests -= 1
                self.tokens -= entry.tokens


@dataclass(frozen=True, slots=True)
class Reading:
    """A scope's usage according to the ledger or to Redis, and the account's closed sums at that time."""

    tokens_today: int
    spent_this_month: int
    closed_tokens: int
    closed_nanousd: int
    read_at: float = -math.inf
    """When the ledger began to be read."""


class Told(NamedTuple):
    """What Redis told of a scope's day and month."""

    reading: Reading
    """Without the requests that this gateway had under way."""
    at: float
    day: int
    """As an ordinal."""
    counted: int
    """Which of the two are counted (`period_flags`); the other is not known."""


class LocalLimiter:
    def __init__(self, *, incarnation: str, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._incarnation = incarnation
        self._window_s = window_s
        self._clock = clock
        self._accounts: OrderedDict[tuple[int, str], Account] = OrderedDict()
        self.live: dict[str, Entry] = {}
        """Requests under way, by request id."""
        self.untold: dict[str, Entry] = {}
        """Requests under way that Redis does not hold, or may not hold."""
        self._long: deque[Entry] = deque()
        """Requests that ended recently but began before the window."""
        self.num_gateways = 1
        """How many gateways share the limits, by the last heartbeat."""

    def enter(self, admission: Admission) -> Entry:
        """Count a request, unconditionally."""
        now = self._clock()
        accounts = self.accounts_of(admission, now)
        entry = Entry(
            admission, self._terms(admission, accounts[-1]), accounts, now, admission.tokens, admission.cost_nanousd
        )
        for account in accounts:
            account.entries.append(entry)
            account.num_requests += 1
            account.tokens += entry.tokens
            account.num_live += 1
            account.live_tokens += entry.tokens
            account.live_nanousd += entry.cost_nanousd
        self.live[admission.request_id] = entry
        return entry

    def leave(self, entry: Entry) -> None:
        """Take the request back, as if it had never been made."""
        if entry.is_void:
            return
        self._end(entry)
        for account in entry.accounts:
            if entry.at > account.horizon:
                account.num_requests -= 1
                account.tokens -= entry.tokens
            if account.entries and account.entries[-1] is entry:
                # As usual for a refusal: in a flood, the rest would be looked through for the oldest that counts.
                account.entries.pop()
        entry.is_void = True

    def note_known(self, entry: Entry, *, is_known: bool = True) -> None:
        """Redis holds the request, or may not hold it any longer."""
        if entry.is_live and entry.is_known is not is_known:
            sign = 1 if is_known else -1
            for account in entry.accounts:
                account.known_tokens += sign * entry.tokens
                account.known_nanousd += sign * entry.cost_nanousd
        entry.is_known = is_known

    def close(self, entry: Entry, tokens: int, cost_nanousd: int) -> bool:
        """End the request with its actual figures. Returns False, and changes nothing, if it has ended before."""
        if not entry.is_live:
            return False
        self._end(entry)
        for account in entry.accounts:
            account.closed_tokens += tokens
            account.closed_nanousd += cost_nanousd
            if entry.at > account.horizon:
                account.tokens += tokens - entry.tokens
        entry.tokens, entry.cost_nanousd, entry.closed_at = tokens, cost_nanousd, self._clock()
        if entry.at <= entry.accounts[0].horizon:
            self._note_long(entry)
        return True

    def check(self, admission: Admission, readings: Mapping[str, Reading]) -> None:
        """Raises LimitReached if this gateway's share of any scope's limits has no room for the request."""
        now = self._clock()
        accounts = self.accounts_of(admission, now)
        standing = self.standing(accounts[0], now)
        for scope, account in zip(admission.scopes(), accounts, strict=True):
            found = self._exhausted(account, scope.limits, admission, readings.get(scope.name), now)
            if found is not None:
                limit, retry_after_s = found
                raise refuse(admission, scope, standing, limit, retry_after_s=retry_after_s)

    def standing(self, account: Account, now: float | None = None) -> Standing:
        now = self._clock() if now is None else now
        reset_s = account.entries[-1].at + self._window_s - now if account.entries else 0.0
        return Standing(account.num_requests, account.tokens, reset_s, is_local=True)

    def forget_memory_of_redis(self) -> Iterator[Entry]:
        """Redis has lost everything and must be told again: marks requests under way as untold, and yields recently
        ended ones."""
        for request_id, entry in self.live.items():
            if entry.is_known:
                self.note_known(entry, is_known=False)
                self.untold[request_id] = entry
        for (_, name), account in self._accounts.items():
            if name == TENANT:
                for entry in account.entries:
                    entry.is_known = False
                    if not entry.is_live and not entry.is_void:
                        yield entry
        for entry in self._long:
            # It began before the window, but ended so recently that the ledger may not have it.
            if entry.closed_at > self._clock() - NEW_IN_LEDGER_S:
                entry.is_known = False
                yield entry

    def live_requests(self) -> dict[UUID, list[str]]:
        """The ids of the requests under way at this gateway, by tenant."""
        found: dict[UUID, list[str]] = {}
        for request_id, entry in self.live.items():
            found.setdefault(entry.admission.tenant_id, []).append(request_id)
        return found

    def tenants(self) -> list[UUID]:
        return [UUID(int=number) for number, name in self._accounts if name == TENANT]

    def periods(self) -> list[tuple[UUID, str, Account]]:
        """The scopes with a daily or monthly limit for which requests were asked for here."""
        admissions = [account.terms.admission for account in self._accounts.values() if account.terms is not None]
        found = {
            (each.tenant_id.int, scope.name): (
                each.tenant_id,
                scope.name,
                self._accounts[each.tenant_id.int, scope.name],
            )
            for each in admissions
            for scope in each.scopes()
            if has_periods(scope.limits) and (each.tenant_id.int, scope.name) in self._accounts
        }
        return list(found.values())

    def accounts_of(self, admission: Admission, now: float | None = None) -> tuple[Account, ...]:
        """The accounts of all scopes, brought up to date, the tenant's first."""
        now = self._clock() if now is None else now
        tenant = self._account(admission.tenant_id, TENANT, now)
        if admission.inner_scopes:
            inner = (self._account(admission.tenant_id, scope.name, now) for scope in admission.inner_scopes)
            accounts = (tenant, *inner)
        else:
            accounts = tenant.alone = tenant.alone or (tenant,)
        if len(self._accounts) > MAX_ACCOUNTS:
            # Two for each that may be new, so that a crowd's accounts become fewer again.
            for _ in range(2 * len(accounts)):
                self._drop_idlest(now, but=accounts)
        return accounts

    def _account(self, tenant_id: UUID, name: str, now: float) -> Account:
        # Keyed by the UUID's number, because hashing a UUID object runs Python code.
        key = (tenant_id.int, name)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(tenant_id.int & 0xFF, deque())
        else:
            self._accounts.move_to_end(key)
        account.forget_before(now - self._window_s)
        return account

    def _drop_idlest(self, now: float, *, but: tuple[Account, ...]) -> None:
        """Drop the least recently used account without requests under way, if it has none in the window either;
        otherwise drop none. `but`: accounts about to be used."""
        for key, account in self._accounts.items():
            if not account.num_live and account not in but:
                account.forget_before(now - self._window_s)
                if not account.entries:
                    del self._accounts[key]
                    account.alone = ()
                return

    def _terms(self, admission: Admission, innermost: Account) -> Terms:
        terms = innermost.terms
        if terms is None or not terms.fits(admission):
            terms = Terms(admission, incarnation=self._incarnation, window_us=int(self._window_s * 1e6))
            innermost.terms = terms
        return terms

    def _end(self, entry: Entry) -> None:
        if not entry.is_live:
            return
        entry.is_live = False
        for account in entry.accounts:
            account.num_live -= 1
            account.live_tokens -= entry.tokens
            account.live_nanousd -= entry.cost_nanousd
            if entry.is_known:
                account.known_tokens -= entry.tokens
                account.known_nanousd -= entry.cost_nanousd
        self.live.pop(entry.admission.request_id, None)
        self.untold.pop(entry.admission.request_id, None)

    def _note_long(self, entry: Entry) -> None:
        self._long.append(entry)
        while self._long[0].closed_at <= entry.closed_at - NEW_IN_LEDGER_S:
            self._long.popleft()

    def _exhausted(
        self, account: Account, limits: Limits, admission: Admission, reading: Reading | None, now: float
    ) -> tuple[str, float] | None:
        """The limit that is exhausted, and the time until a retry (s); None if there is room."""
        if reading is not None:
            # The remainder is shared, too: requests that other gateways admit meanwhile are not in the ledger yet.
            tokens = account.live_tokens + account.closed_tokens - reading.closed_tokens + admission.tokens
            if tokens > self._room(limits.tokens_per_day, reading.tokens_today):
                return "tokens_per_day", 0
            nanousd = account.live_nanousd + account.closed_nanousd - reading.closed_nanousd + admission.cost_nanousd
            if nanousd > self._room(limits.budget_nanousd_per_month, reading.spent_this_month):
                return "budget", 0
        if account.num_requests + 1 > self._share(limits.requests_per_minute):
            oldest = next((entry.at for entry in account.entries if not entry.is_void), now)
            return "requests_per_minute", oldest + self._window_s - now
        if account.tokens + admission.tokens > self._share(limits.tokens_per_minute):
            return "tokens_per_minute", self._window_s
        if account.num_live + 1 > self._share(limits.concurrency):
            return "concurrency", 1
        return None

    def _share(self, limit: int | None) -> float:
        if limit is None:
            return math.inf
        return max(min(1, limit), limit // self.num_gateways)

    def _room(self, limit: int | None, used: int) -> float:
        return math.inf if limit is None else max(0, limit - used) // self.num_gateways
