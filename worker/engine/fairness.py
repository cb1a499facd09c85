"""Fair queues between tenants of one class: the virtual token counter of Sheng et al. (OSDI 2024), weighted.

The tenant that was served least, in tokens over its weight, is next. A tenant that comes back after being idle is
lifted to the least of those that waited meanwhile: idling earns no credit.
"""

from collections import deque

from worker.engine.sequence import Sequence

PROMPT_TOKEN_COST = 1.0
OUTPUT_TOKEN_COST = 2.0
_MAX_REMEMBERED = 1000


class FairQueue:
    """Waiting sequences of one priority class; within a tenant first come, first served."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Sequence]] = {}
        self._served: dict[str, float] = {}
        self._floor = 0.0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, sequence: Sequence) -> None:
        self._queue_of(sequence.request.tenant).append(sequence)
        self._size += 1

    def push_front(self, sequence: Sequence) -> None:
        """For a preempted sequence: its service was already counted."""
        self._queue_of(sequence.request.tenant).appendleft(sequence)
        self._size += 1

    def peek(self) -> Sequence:
        """The next to serve; there must be one."""
        return self._queues[self._next_tenant()][0]

    def pop(self) -> Sequence:
        tenant = self._next_tenant()
        sequence = self._queues[tenant].popleft()
        self._floor = max(self._floor, self._served[tenant])
        self._shrink(tenant)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._queues[tenant].remove(sequence)
        self._shrink(tenant)

    def charge(self, tenant: str, cost: float) -> None:
        """Add to what the tenant was served; cost is already divided by its weight."""
        self._served[tenant] = self._served.get(tenant, self._floor) + cost

    def served(self, tenant: str) -> float:
        return self._served.get(tenant, self._floor)

    def _next_tenant(self) -> str:
        return min(self._queues, key=lambda tenant: self._served[tenant])

    def _queue_of(self, tenant: str) -> deque[Sequence]:
        queue = self._queues.get(tenant)
        if queue is None:
            lift = min((self._served[other] for other in self._queues), default=self._floor)
            self._served[tenant] = max(self._served.get(tenant, lift), lift)
            queue = self._queues[tenant] = deque()
        return queue

    def _shrink(self, tenant: str) -> None:
        self._size -= 1
        if not self._queues[tenant]:
            del self._queues[tenant]
        if len(self._served) > _MAX_REMEMBERED + len(self._queues):
            self._forget_the_least_served()

    def _forget_the_least_served(self) -> None:
        """Of the idle tenants, half: those that would gain least, if they came back, from a fresh start."""
        idle = sorted(self._served.keys() - self._queues.keys(), key=self._served.__getitem__)
        for tenant in idle[: len(idle) // 2]:
            del self._served[tenant]
