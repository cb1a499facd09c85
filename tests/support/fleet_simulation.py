"""A discrete-event simulation of replicas under a skewed load: how the policy for choosing replicas affects TTFT.

A replica computes one prompt at a time, slower the more answers run. An answer holds a slot. The prefixes of recently
computed prompts are cached. Few adapters are resident, and loading one takes a while. Gateways see what they would see
in production: reports every half second, at a different moment for each replica, and the requests that they have sent.
"""

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from protocol.load import HEARTBEAT_S, LoadReport
from router.balance import Affinity, order
from router.fleet import Member, Pool
from router.in_flight import InFlight, Trip
from router.ring import hash_key
from tests.support.fleets import load

SLOTS = 32
RESIDENT = 8
CACHED_BEGINNINGS = 24
LOAD_ADAPTER_S = 0.4
PREFILL_TOKENS_PER_S = 12_000.0
TOKEN_S = 0.02


@dataclass(slots=True)
class Request:
    number: int
    at_s: float
    adapter: str | None
    beginning: int
    beginning_tokens: int
    own_tokens: int
    answer_tokens: int
    ttft_s: float = 0.0


@dataclass(slots=True)
class Replica:
    name: str
    ready: deque[Request] = field(default_factory=deque)
    num_loading: int = 0
    num_running: int = 0
    is_computing: bool = False
    resident: OrderedDict[str, None] = field(default_factory=OrderedDict)
    cached: OrderedDict[tuple[str | None, int], None] = field(default_factory=OrderedDict)
    num_cold: int = 0

    def report(self, adapters: tuple[str, ...]) -> LoadReport:
        waiting = len(self.ready) + self.num_loading
        running = self.num_running + self.is_computing
        report = load(waiting=waiting, running=running, max_num_seqs=SLOTS, adapters=adapters)
        return msgspec.structs.replace(report, resident_adapters=tuple(self.resident))


@dataclass(slots=True)
class _Flight:
    in_flight: InFlight = field(default_factory=InFlight)
    load: LoadReport | None = None
    load_at_s: float = 0.0
    own: tuple[int, int] = (0, 0)


class Gateway:
    """The view of one gateway: the reports that it received, and its own requests."""

    def __init__(self, names: Sequence[str], *, staleness_s: float) -> None:
        self._flights = {name: _Flight() for name in names}
        self._staleness_s = staleness_s
        self.pool = Pool(name="large", model_id="m", context_window=8192)
        self._kept: deque[tuple[float, str, LoadReport, tuple[int, int]]] = deque()

    def hear(self, name: str, report: LoadReport, now_s: float) -> None:
        """Send a report as of now, which arrives `staleness_s` later."""
        flight = self._flights[name].in_flight
        self._kept.append((now_s, name, report, (flight.num_unanswered, flight.num_streaming)))

    def draw(self, now_s: float) -> None:
        while self._kept and self._kept[0][0] + self._staleness_s <= now_s:
            at_s, name, report, own = self._kept.popleft()
            flight = self._flights[name]
            flight.load, flight.load_at_s, flight.own = report, at_s, own
        self.pool = msgspec.structs.replace(
            self.pool,
            members=tuple(
                [
                    Member(
                        worker_id=name,
                        url=name,
                        model_name="m",
                        load=flight.load,
                        age_s=now_s - flight.load_at_s,
                        recent_ttft_ms=flight.in_flight.recent_ttft_ms(now_s),
                        in_flight=flight.in_flight,
                        own_unanswered=flight.own[0],
                        own_streaming=flight.own[1],
                    )
                    for name, flight in self._flights.items()
                ]
            ),
        )


Choose = Callable[[Pool, Request], Member]


def by_turns() -> Choose:
    """Round robin."""
    return lambda pool, request: pool.members[request.number % len(pool.members)]


def by_load() -> Choose:
    """The replica with the fewest waiting and running requests, by the same reports and counts."""
    return lambda pool, request: (
        min(
            pool.replicas.usable, key=lambda each: (each.num_waiting + each.num_running, each.hash ^ request.number)
        ).member
    )


def by_router() -> Choose:
    def choose(pool: Pool, request: Request) -> Member:
        affinity = Affinity(hash_key(str(request.beginning)), request.number)
        return order(pool, request_id=str(request.number), adapter=request.adapter, affinity=affinity)[0].member

    return choose


@dataclass(frozen=True)
class Outcome:
    ttft_p50_s: float
    ttft_p95_s: float
    cold_loads: int
    cached_share: float


def make_requests(num: int, *, rate: float, seed: int = 1, num_adapters: int = 200) -> list[Request]:
    """Requests whose prefixes, and for half of them adapters, follow Zipf's law: a few serve half of all requests."""
    chance = random.Random(seed)
    adapters = _zipf(num_adapters)
    beginnings = _zipf(1000)
    lengths = [chance.randint(200, 2400) for _ in range(1000)]
    at_s = 0.0
    found = []
    for number in range(num):
        at_s += chance.expovariate(rate)
        adapter = f"a{chance.choices(range(num_adapters), cum_weights=adapters)[0]}" if chance.random() < 0.5 else None
        beginning = chance.choices(range(1000), cum_weights=beginnings)[0]
        found.append(
            Request(
                number,
                at_s,
                adapter,
                beginning,
                lengths[beginning],
                chance.randint(20, 400),
                min(800, int(chance.expovariate(1 / 120)) + 1),
            )
        )
    return found


def _zipf(num: int) -> list[float]:
    total, sums = 0.0, []
    for rank in range(1, num + 1):
        total += 1 / rank
        sums.append(total)
    return sums


def simulate(
    choose: Choose, requests: list[Request], *, num_replicas: int, num_gateways: int = 2, staleness_s: float = 0.0
) -> Outcome:
    return _Simulation(choose, requests, num_replicas, num_gateways, staleness_s).run()


class _Simulation:
    def __init__(
        self, choose: Choose, requests: list[Request], num_replicas: int, num_gateways: int, staleness_s: float
    ) -> None:
        self._choose = choose
        self._requests = requests
        self._replicas = [Replica(f"worker-{i}") for i in range(num_replicas)]
        self._by_name = {replica.name: replica for replica in self._replicas}
        names = [replica.name for replica in self._replicas]
        self._gateways = [Gateway(names, staleness_s=staleness_s) for _ in range(num_gateways)]
        self._adapters = tuple(sorted({each.adapter for each in requests if each.adapter is not None}))
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._num_events = 0
        self._trips: dict[int, Trip] = {}
        self._num_left = len(requests)
        self._tokens = self._cached_tokens = 0

    def run(self) -> Outcome:
        for i, replica in enumerate(self._replicas):
            self._at(HEARTBEAT_S * i / len(self._replicas), lambda now, replica=replica: self._beat(replica, now))
        for i in range(len(self._gateways)):
            self._draw(i, 0.0)
        self._arrive(iter(self._requests), None, 0.0)
        while self._num_left:
            now_s, _, act = heapq.heappop(self._events)
            act(now_s)
        waits = sorted(request.ttft_s for request in self._requests)
        return Outcome(
            waits[len(waits) // 2],
            waits[len(waits) * 95 // 100],
            sum(replica.num_cold for replica in self._replicas),
            self._cached_tokens / self._tokens,
        )

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, act))

    def _beat(self, replica: Replica, now_s: float) -> None:
        report = replica.report(self._adapters)
        for gateway in self._gateways:
            gateway.hear(replica.name, report, now_s)
        self._at(now_s + HEARTBEAT_S, lambda now: self._beat(replica, now))

    def _draw(self, index: int, now_s: float) -> None:
        self._gateways[index].draw(now_s)
        self._at(now_s + HEARTBEAT_S, lambda now: self._draw(index, now))

    def _arrive(self, following: Iterator[Request], request: Request | None, now_s: float) -> None:
        if request is not None:
            gateway = self._gateways[request.number % len(self._gateways)]
            member = self._choose(gateway.pool, request)
            self._trips[request.number] = member.in_flight.send(now_s)
            self._take(self._by_name[member.worker_id], request, now_s)
        after = next(following, None)
        if after is not None:
            self._at(after.at_s, lambda now: self._arrive(following, after, now))

    def _take(self, replica: Replica, request: Request, now_s: float) -> None:
        if request.adapter is None or request.adapter in replica.resident:
            if request.adapter is not None:
                replica.resident.move_to_end(request.adapter)
            self._ready(replica, request, now_s)
            return
        replica.num_cold += 1
        replica.num_loading += 1
        self._at(now_s + LOAD_ADAPTER_S, lambda now: self._loaded(replica, request, now))

    def _loaded(self, replica: Replica, request: Request, now_s: float) -> None:
        assert request.adapter is not None
        replica.num_loading -= 1
        replica.resident[request.adapter] = None
        replica.resident.move_to_end(request.adapter)
        while len(replica.resident) > RESIDENT:
            replica.resident.popitem(last=False)
        self._ready(replica, request, now_s)

    def _ready(self, replica: Replica, request: Request, now_s: float) -> None:
        replica.ready.append(request)
        self._compute(replica, now_s)

    def _compute(self, replica: Replica, now_s: float) -> None:
        if replica.is_computing or not replica.ready or replica.num_running >= SLOTS:
            return
        request = replica.ready.popleft()
        replica.is_computing = True
        key = (request.adapter, request.beginning)
        tokens = request.own_tokens
        self._tokens += tokens + request.beginning_tokens
        if key in replica.cached:
            self._cached_tokens += request.beginning_tokens
        else:
            tokens += request.beginning_tokens
        replica.cached[key] = None
        replica.cached.move_to_end(key)
        while len(replica.cached) > CACHED_BEGINNINGS:
            replica.cached.popitem(last=False)
        took_s = tokens / PREFILL_TOKENS_PER_S * (1 + replica.num_running / SLOTS)
        self._at(now_s + took_s, lambda now: self._answer(replica, request, now))

    def _answer(self, replica: Replica, request: Request, now_s: float) -> None:
        replica.is_computing = False
        replica.num_running += 1
        request.ttft_s = now_s - request.at_s
        self._trips[request.number].note_first_token(now_s)
        self._at(now_s + request.answer_tokens * TOKEN_S, lambda now: self._end(replica, request, now))
        self._compute(replica, now_s)

    def _end(self, replica: Replica, request: Request, now_s: float) -> None:
        replica.num_running -= 1
        self._trips.pop(request.number).end()
        self._num_left -= 1
        self._compute(replica, now_s)
