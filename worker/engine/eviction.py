"""Which running sequences are evicted, and when a waiting one may displace others of its own class. Pure."""

from collections.abc import Iterable

from worker.engine.blocks import BLOCK_SIZE, BlockPool
from worker.engine.request import EngineRequest
from worker.engine.sequence import Sequence

MAX_PREEMPTED = 2
"""A sequence evicted this often is spared: within its class it is evicted only when all others are spared, too, and
then the youngest goes first, so that every sequence finishes in the end."""


def rank(sequence: Sequence) -> int:
    """The sequence's class; one that runs out of turn ranks before all classes."""
    return -1 if sequence.is_out_of_turn else sequence.request.priority


def worst(sequences: Iterable[Sequence], pool: BlockPool) -> Sequence:
    """The sequence of the lowest class with the least work to lose; among equals, the youngest."""
    return max(sequences, key=lambda sequence: _badness(sequence, pool))


def evictable_for(
    newcomer: Sequence, running: list[Sequence], num_blocks: int, *, max_num_seqs: int, pool: BlockPool
) -> list[Sequence]:
    """The sequences that may be evicted to admit `newcomer`, which needs num_blocks more, in eviction order: all of
    lower classes, then those of tenants of its own class that hold more than its tenant would.
    """
    lower = [each for each in running if rank(each) > newcomer.request.priority]
    lower.sort(key=lambda sequence: _badness(sequence, pool), reverse=True)
    own_class = _Holdings(running, newcomer.request.priority, max_num_seqs, pool)
    return lower + own_class.over_share(newcomer.request, num_blocks)


class _Holdings:
    """Each tenant's share of a class's slots and blocks: the larger of the two, divided by the tenant's weight."""

    def __init__(self, running: list[Sequence], priority: int, max_num_seqs: int, pool: BlockPool) -> None:
        self._max_num_seqs = max_num_seqs
        self._pool = pool
        self._held: dict[str, list[Sequence]] = {}
        for each in running:
            if rank(each) == priority:
                self._held.setdefault(each.request.tenant, []).append(each)

    def over_share(self, request: EngineRequest, num_blocks: int) -> list[Sequence]:
        """Sequences that other tenants give up while they keep at least as much as the request's tenant would then
        hold, so that no exchange calls for the opposite one."""
        own = self._held.pop(request.tenant, [])
        wanted = self._part(own, more_seqs=1, more_blocks=num_blocks) / request.weight
        found: list[Sequence] = []
        while self._held:
            held = max(self._held.values(), key=self._share)
            victim = worst(held, self._pool)
            held.remove(victim)
            if victim.num_preempted >= MAX_PREEMPTED or not held or self._share(held) < wanted:
                return found
            found.append(victim)
        return found

    def _share(self, held: list[Sequence]) -> float:
        return self._part(held) / held[0].request.weight

    def _part(self, held: list[Sequence], *, more_seqs: int = 0, more_blocks: int = 0) -> float:
        num_blocks = sum(len(each.owned_blocks) for each in held) + more_blocks
        return max((len(held) + more_seqs) / self._max_num_seqs, num_blocks / self._pool.num_blocks)


def _badness(sequence: Sequence, pool: BlockPool) -> tuple[int, bool, int, int]:
    is_spared = sequence.num_preempted >= MAX_PREEMPTED
    return rank(sequence), not is_spared, 0 if is_spared else -_work_lost(sequence, pool), sequence.order


def _work_lost(sequence: Sequence, pool: BlockPool) -> int:
    """Computed tokens in blocks that no other sequence owns."""
    return min(sequence.num_computed, BLOCK_SIZE * len(pool.unshared(sequence.owned_blocks)))
