"""Waiting sequences in strict classes (0 before 3), none of which waits forever.

Once better classes were admitted MAX_PASSED times while a class waited, that class may send its first sequence out of
turn: before all others, and from then on ranked before everything that runs, so that it is not evicted again. Each
class has at most one such sequence. The cost to the better classes is a slot and its blocks for each class below them,
and the wait until these are free.

**The bound.** While a class has a sequence waiting and none running out of turn, better classes are admitted at most
MAX_PASSED times before it. A sequence that runs out of turn always has room to end, since it is ranked first and the
pool holds at least one whole window. Inside a class `fairness` says who is next.
"""

from typing import NamedTuple

from worker.engine.fairness import FairQueue
from worker.engine.request import EngineRequest
from worker.engine.sequence import Sequence

NUM_CLASSES = 4
MAX_PASSED = 32


class Turn(NamedTuple):
    sequence: Sequence
    is_out_of_turn: bool


class ClassQueues:
    def __init__(self) -> None:
        self._queues = [FairQueue() for _ in range(NUM_CLASSES)]
        self._num_passed = [0] * NUM_CLASSES
        self._out_of_turn: list[Sequence | None] = [None] * NUM_CLASSES

    def push(self, sequence: Sequence) -> None:
        self._queues[sequence.request.priority].push(sequence)

    def push_front(self, sequence: Sequence) -> None:
        """For a preempted sequence."""
        priority = sequence.request.priority
        if sequence.is_out_of_turn:
            self.forget(sequence)
            self._num_passed[priority] = MAX_PASSED
        self._queues[priority].push_front(sequence)

    def next(self) -> Turn | None:
        """The sequence to be admitted next."""
        due = [i for i, queue in enumerate(self._queues) if len(queue) and self._is_due(i)]
        if due:
            longest = max(due, key=self._num_passed.__getitem__)
            return Turn(self._queues[longest].peek(), is_out_of_turn=True)
        return next((Turn(queue.peek(), is_out_of_turn=False) for queue in self._queues if len(queue)), None)

    def pop(self, turn: Turn) -> None:
        """Take the sequence that `next` returned, which is admitted."""
        priority = turn.sequence.request.priority
        self._queues[priority].pop()
        self._num_passed[priority] = 0
        if turn.is_out_of_turn:
            turn.sequence.is_out_of_turn = True
            self._out_of_turn[priority] = turn.sequence
        for i in range(priority + 1, NUM_CLASSES):
            self._num_passed[i] += len(self._queues[i]) > 0

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that waits no more without having been admitted."""
        priority = sequence.request.priority
        self._queues[priority].remove(sequence)
        if not len(self._queues[priority]):
            self._num_passed[priority] = 0

    def forget(self, sequence: Sequence) -> None:
        """The sequence runs no more; another of its class may go out of turn."""
        if sequence.is_out_of_turn:
            sequence.is_out_of_turn = False
            self._out_of_turn[sequence.request.priority] = None

    def charge(self, request: EngineRequest, cost: float) -> None:
        self._queues[request.priority].charge(request, cost)

    def served(self, request: EngineRequest) -> float:
        """The service that the request's tenant got in its class."""
        return self._queues[request.priority].served(request.tenant)

    def has_more(self, request: EngineRequest) -> bool:
        """Whether more requests of the same tenant wait in its class."""
        return self._queues[request.priority].has(request.tenant)

    def _is_due(self, priority: int) -> bool:
        return self._num_passed[priority] >= MAX_PASSED and self._out_of_turn[priority] is None
