"""Fair turns: the virtual token counter of Sheng et al. (OSDI 2024), weighted, between tenants and, within a tenant,
between its adapters; among one tenant's requests for one adapter short prompts go first, with ageing.

**The bound.** Let tenants f and g of one class both have requests waiting throughout an interval. The service that they
get in it, in tokens over their weights, differs by at most U(f) + U(g), where U(x) = S * C / w(x), S is the largest
number of sequences that run at once, C the highest cost of one request and w the weight.

Why: a turn goes to the tenant with the smallest counter. A tenant that starts to wait is lifted to the smallest counter
of the waiting ones, or to the floor, which is the highest counter that ever won a turn. So no waiting tenant's counter
is below the floor. Nor is x's counter above floor + U(x): at its last turn the counter was at most the floor, and since
then it was charged only for running sequences, at most S of them at a cost of at most C each. So the counters of two
waiting tenants never differ by more than the larger U, and the gap f - g moves by at most U(f) + U(g).

It follows that no tenant waits forever: while g waits, no other tenant is served more than that beyond g. The same
holds between a tenant's adapters, with weights of 1, while the tenant has requests waiting. Younger prompts of the same
tenant and adapter that pass a prompt of L tokens have fewer than 3 L tokens in all, see `_Line`.
"""

from bisect import insort

from worker.engine.request import EngineRequest
from worker.engine.sequence import Sequence

PROMPT_TOKEN_COST = 1.0
OUTPUT_TOKEN_COST = 2.0
_MAX_REMEMBERED = 1000
_AGEING = 4


def token_cost(sequence: Sequence, start: int, end: int) -> float:
    """The cost of serving the tokens [start, end) of a sequence."""
    num_prompt = max(min(end, sequence.num_prompt) - start, 0)
    return num_prompt * PROMPT_TOKEN_COST + (end - start - num_prompt) * OUTPUT_TOKEN_COST


class FairQueue:
    """Waiting sequences of one priority class."""

    def __init__(self) -> None:
        self._tenants = Turns()
        self._adapters: dict[str, Turns] = {}
        self._lines: dict[tuple[str, str], _Line] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, sequence: Sequence) -> None:
        self._line_of(sequence).join(sequence)

    def push_front(self, sequence: Sequence) -> None:
        """For a preempted sequence, whose service was already counted."""
        self._line_of(sequence).rejoin(sequence)

    def peek(self) -> Sequence:
        """The next sequence to serve; the queue must not be empty."""
        tenant = self._tenants.next()
        return self._lines[tenant, self._adapters[tenant].next()].first()

    def pop(self) -> Sequence:
        sequence = self.peek()
        tenant, adapter = _names(sequence.request)
        self._tenants.take(tenant)
        self._adapters[tenant].take(adapter)
        self.remove(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        tenant, adapter = _names(sequence.request)
        self._size -= 1
        if not self._lines[tenant, adapter].leave(sequence):
            del self._lines[tenant, adapter]
            self._adapters[tenant].leave(adapter)
            if not self._adapters[tenant].is_anybody_waiting:
                del self._adapters[tenant]
                self._tenants.leave(tenant)

    def charge(self, request: EngineRequest, cost: float) -> None:
        """Add a cost to the service that the request's tenant got, and within the tenant, its adapter."""
        tenant, adapter = _names(request)
        self._tenants.charge(tenant, cost / request.weight)
        if tenant in self._adapters:
            self._adapters[tenant].charge(adapter, cost)

    def served(self, tenant: str) -> float:
        return self._tenants.served(tenant)

    def has(self, tenant: str) -> bool:
        """Whether any request of the tenant waits."""
        return tenant in self._adapters

    def _line_of(self, sequence: Sequence) -> "_Line":
        tenant, adapter = _names(sequence.request)
        self._size += 1
        line = self._lines.get((tenant, adapter))
        if line is None:
            self._tenants.enter(tenant)
            self._adapters.setdefault(tenant, Turns()).enter(adapter)
            line = self._lines[tenant, adapter] = _Line()
        return line


class Turns:
    """Whose turn it is: the waiting name that was served least.

    Among equals the oldest comes first, except that a name returning from idle, which was lifted to the same counter,
    goes before it once. If it could do so twice, ever new names would keep the oldest from its turn.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._lifted: set[str] = set()
        self._passed: set[str] = set()
        self._served: dict[str, float] = {}
        self._floor = 0.0

    @property
    def is_anybody_waiting(self) -> bool:
        return bool(self._waiting)

    def enter(self, name: str) -> None:
        """The name waits from now on. Time in which it did not wait earns no credit."""
        if name not in self._waiting:
            lift = min((self._served[other] for other in self._waiting), default=self._floor)
            own = self._served.get(name, 0.0)
            if own < lift:
                self._lifted.add(name)
            self._served[name] = max(own, lift)
            self._waiting[name] = None

    def leave(self, name: str) -> None:
        del self._waiting[name]
        self._lifted.discard(name)
        self._passed.discard(name)
        if len(self._served) > _MAX_REMEMBERED + len(self._waiting):
            self._forget_the_least_served()

    def next(self) -> str:
        least = min(map(self._served.__getitem__, self._waiting))
        equals = [name for name in self._waiting if self._served[name] == least]
        if equals[0] in self._passed:
            return equals[0]
        return next((name for name in equals if name in self._lifted), equals[0])

    def take(self, name: str) -> None:
        """The name has used its turn."""
        self._passed |= {other for other in self._waiting if self._served[other] == self._served[name]}
        self._passed.discard(name)
        self._lifted.discard(name)
        self._floor = max(self._floor, self._served[name])

    def charge(self, name: str, cost: float) -> None:
        self._served[name] = self.served(name) + cost

    def served(self, name: str) -> float:
        return self._served.get(name, self._floor)

    def _forget_the_least_served(self) -> None:
        """Forgets half of the names that do not wait: those that would gain least from a fresh start on return."""
        idle = sorted(self._served.keys() - self._waiting.keys(), key=self._served.__getitem__)
        for name in idle[: len(idle) // 2]:
            del self._served[name]


class _Line:
    """One tenant's sequences for one adapter, ordered by the place that each gets when it joins: the number of tokens
    that joined before it plus _AGEING times its own.

    A sequence of l tokens that passes one of L tokens joined later, after J tokens of others, and
    L + J + 4 l < 4 L. So J + l, all the tokens that can have passed, is less than 3 L.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Sequence]] = []
        self._num_joined = 0

    def join(self, sequence: Sequence) -> None:
        length = len(sequence.token_ids)
        self._insert(self._num_joined + _AGEING * length, sequence)
        self._num_joined += length

    def rejoin(self, sequence: Sequence) -> None:
        self._insert(-1, sequence)

    def first(self) -> Sequence:
        return self._entries[0][2]

    def leave(self, sequence: Sequence) -> int:
        """Remove the sequence and return how many are left."""
        del self._entries[next(i for i, entry in enumerate(self._entries) if entry[2] is sequence)]
        return len(self._entries)

    def _insert(self, place: int, sequence: Sequence) -> None:
        insort(self._entries, (place, sequence.order, sequence), key=lambda entry: entry[:2])


def _names(request: EngineRequest) -> tuple[str, str]:
    return request.tenant, request.adapter or ""
