"""Decides what runs in the next step: continuous batching under a token budget, decodes first, then prefill chunks.

Pure: no torch, no clock, no threads. `queues` says which waiting sequence is next, `eviction` which running one is
preempted, and `prefill` how a step's prompt tokens are shared.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterator

from worker.engine.blocks import BLOCK_SIZE, BlockPool, blocks_needed
from worker.engine.eviction import evictable_for, rank, worst
from worker.engine.fairness import token_cost
from worker.engine.prefill import SHORT_PROMPTS, share_prefill, share_separate_step
from worker.engine.prefix_cache import chain_digest
from worker.engine.queues import ClassQueues, Turn
from worker.engine.sequence import Advance, Chunk, Sequence

_MAX_STALE_DEADLINES = 1000
_TIGHT = 0.05
_LARGE_SHARE = 4


class Scheduler:
    """Owns every live sequence and its blocks. One step is: schedule, launch, advance; finish or abort in between. The
    next step may be launched before the last one has advanced, see `must_settle`."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_batched_tokens: int,
        enterprise_headroom: float = 0.0,
        window: int | None = None,
    ) -> None:
        """enterprise_headroom: the share of slots and blocks that only class 0 may be admitted to.

        window: the most tokens that any layer attends to, counting the token itself; None if a layer attends to all.
        """
        assert max_batched_tokens >= max_num_seqs, "every running sequence must be able to decode in each step"
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.num_preemptions = 0
        self._window = window
        self._reserved_seqs = int(enterprise_headroom * max_num_seqs)
        self._reserved_blocks = int(enterprise_headroom * pool.num_blocks)
        self._queues = ClassQueues()
        self._running: list[Sequence] = []
        self._num_running_of: Counter[str] = Counter()
        self._live: dict[str, Sequence] = {}
        self._deadlines: list[tuple[float, int, str]] = []
        self._next_order = 0
        self._was_separate = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._live) - len(self._running)

    @property
    def num_together(self) -> int:
        """How many of the live sequences can run together."""
        return min(len(self._live), self.max_num_seqs)

    @property
    def is_kv_tight(self) -> bool:
        """Nearly all blocks are in use, and the running sequences may need more than are left. Thread-safe."""
        num_free = self.pool.num_free
        if num_free >= _TIGHT * self.pool.num_blocks:
            return False
        return sum(blocks_needed(each.max_len) - len(each.block_ids) for each in tuple(self._running)) > num_free

    def live(self) -> Iterator[Sequence]:
        return iter(self._live.values())

    def snapshot(self) -> tuple[Sequence, ...]:
        """The live sequences of one moment. Thread-safe."""
        return tuple(self._live.values())

    def get(self, stream_id: str) -> Sequence | None:
        return self._live.get(stream_id)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, whose window must fit into the pool."""
        request = sequence.request
        assert sequence.stream_id not in self._live
        sequence.order = self._next_order
        self._next_order += 1
        self._live[sequence.stream_id] = sequence
        self._queues.push(sequence)
        if request.deadline_at is not None:
            heapq.heappush(self._deadlines, (request.deadline_at, sequence.order, sequence.stream_id))
            if len(self._deadlines) > 2 * len(self._live) + _MAX_STALE_DEADLINES:
                self._drop_stale_deadlines()

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished, failed or aborted sequence and free its blocks at once."""
        del self._live[sequence.stream_id]
        if sequence in self._running:
            self._running.remove(sequence)
            self._release(sequence)
            self._queues.forget(sequence)
        else:
            self._queues.remove(sequence)

    def expired(self, now: float) -> list[Sequence]:
        """Live sequences whose deadline has passed; the caller removes them."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = self._owner(heapq.heappop(self._deadlines))
            if sequence is not None:
                found.append(sequence)
        return found

    def schedule(self, now: float, *, max_prefill: int | None = None) -> list[Chunk]:
        """The next step's chunks, with their blocks allocated; empty when there is nothing to do.

        max_prefill: the most prompt tokens for a step in which others decode; None for what the step's budget leaves.
        Of two steps in a row at least one computes all decodes; after one that did not, prompts keep to max_prefill.
        """
        self._provide_decode_blocks()
        self._make_room()
        decodes = self._decodes()
        limit = budget = self.max_batched_tokens - sum(chunk.num_tokens for chunk in decodes)
        if decodes and max_prefill is not None:
            budget = min(budget, max_prefill)
        pending = [each for each in self._running if each.num_uncomputed > 1 and not each.is_extending]
        room = max(budget, min(SHORT_PROMPTS, limit))
        while (turn := self._queues.next()) and self._num_before(turn, pending) < room and self._admit(turn, now):
            pending.append(turn.sequence)
        # A cached or very short prompt may have one token left, which is no more work than a decode.
        decodes += [Chunk(sequence, 1) for sequence in pending if sequence.num_uncomputed == 1]
        pending = sorted((each for each in pending if each.num_uncomputed > 1), key=self._prefill_place)
        # Not in place: a list that is being sorted looks empty to other threads, which ask how many run.
        self._running = sorted(self._running, key=_place)
        return self._choose(decodes, pending, budget)

    def must_settle(self) -> bool:
        """Whether the next `schedule` would take blocks from a running sequence: launched steps must advance first."""
        if sum(map(_num_missing, self._running)) > self.pool.num_free:
            return True
        self._provide_decode_blocks()
        turn = self._queues.next()
        return turn is not None and bool(self._victims(turn))

    def launch(self, chunks: list[Chunk]) -> list[Advance]:
        """Count the chunks as being computed. Pass the result to `advance` once they are computed."""
        launched = []
        for chunk in chunks:
            sequence, yields = chunk.sequence, chunk.yields
            sequence.num_computed += chunk.num_tokens
            sequence.num_ahead += yields
            launched.append(Advance(sequence, sequence.num_computed, yields=yields))
        return launched

    def advance(self, launched: list[Advance]) -> None:
        """Count a computed step: tokens served, and full blocks that can now be found by their content. The caller
        appends the tokens that the step yielded."""
        for sequence, end, yields in launched:
            if sequence.stream_id not in self._live:
                continue
            sequence.num_ahead -= yields
            self._name_full_blocks(sequence, end)
            self._give_up_outlived(sequence, end)
            if end > sequence.num_charged:
                cost = token_cost(sequence, sequence.num_charged, end)
                self._queues.charge(sequence.request, cost)
                sequence.num_charged = end

    def check(self) -> None:
        """Assert that every block is free, cached or owned, once."""
        self.pool.check([sequence.owned_blocks for sequence in self._running])
        assert all(not sequence.block_ids for sequence in self._live.values() if sequence not in self._running)

    def _decodes(self) -> list[Chunk]:
        """One token of each decoding sequence, plus those that its grammar forced, as far as the step has room."""
        decoding = [each for each in self._running if each.num_uncomputed == 1 or each.is_extending]
        spare = self.max_batched_tokens - len(decoding)
        decodes = []
        for sequence in decoding:
            if not sequence.is_ending:
                num_more = min(sequence.num_uncomputed - 1, spare)
                spare -= num_more
                decodes.append(Chunk(sequence, 1 + num_more))
        return decodes

    def _choose(self, decodes: list[Chunk], pending: list[Sequence], budget: int) -> list[Chunk]:
        """Short prompts alone if these should not wait for the decodes; else the decodes with about `budget` prompt
        tokens."""
        separate: list[Chunk] = []
        if decodes and pending and not self._was_separate:
            separate = share_separate_step(pending, self._running, self._queues.served, limit=self.max_batched_tokens)
        urgent = [] if self._was_separate else [sequence for sequence in pending if not self._is_flooding(sequence)]
        self._was_separate = bool(separate)
        limit = self.max_batched_tokens - sum(chunk.num_tokens for chunk in decodes)
        return separate or decodes + share_prefill(pending, min(budget, limit), limit=limit, urgent=urgent)

    def _provide_decode_blocks(self) -> None:
        """Give every running sequence room for its next token, best first; preempt the worst when blocks run out."""
        for sequence in list(self._running):
            missing = _num_missing(sequence)
            while sequence.is_running and missing > self.pool.num_free:
                self._preempt(worst(self._running, self.pool))
            if sequence.is_running and missing > 0:
                sequence.block_ids += self.pool.allocate(missing)

    def _make_room(self) -> None:
        """If the next sequence finds no slot or too few blocks, preempt others, provided that this helps it."""
        turn = self._queues.next()
        if turn is None:
            return
        for victim in self._victims(turn):
            self._preempt(victim)
            if self._fits(turn, self._find_cached(turn.sequence)):
                return

    def _victims(self, turn: Turn) -> list[Sequence]:
        """The sequences that may be preempted for the next one; none if it fits already, or would not fit even then."""
        if self._fits(turn, self._find_cached(turn.sequence)):
            return []
        num_blocks = blocks_needed(len(turn.sequence.token_ids))
        victims = evictable_for(
            turn.sequence, self._running, num_blocks, max_num_seqs=self.max_num_seqs, pool=self.pool
        )
        return victims if self._fits(turn, self._find_cached(turn.sequence), victims) else []

    def _num_before(self, turn: Turn, pending: list[Sequence]) -> int:
        """Tokens still to be prefilled for sequences with a better place than the next one."""
        place = self._prefill_place(turn.sequence)
        return sum(each.num_uncomputed for each in pending if self._prefill_place(each) < place)

    def _prefill_place(self, sequence: Sequence) -> tuple[int, float, int, int, int]:
        """By class, then by the tenant's service so far, by how many of its sequences run, and by the tokens left."""
        request = sequence.request
        served, num_running = self._queues.served(request), self._num_running_of[request.tenant]
        return rank(sequence), served, num_running, sequence.num_uncomputed, sequence.order

    def _is_flooding(self, sequence: Sequence) -> bool:
        """Whether the sequence's tenant runs a large share and has more waiting; it can then wait for another step."""
        is_large = self._num_running_of[sequence.request.tenant] > len(self._running) / _LARGE_SHARE
        return is_large and self._queues.has_more(sequence.request)

    def _admit(self, turn: Turn, now: float) -> bool:
        """Let the next waiting sequence run, with blocks for all its tokens; False if it does not fit."""
        sequence = turn.sequence
        cached = self._find_cached(sequence)
        if not self._fits(turn, cached):
            return False
        missing = blocks_needed(len(sequence.token_ids)) - len(cached)
        self._queues.pop(turn)
        self.pool.share(cached)
        sequence.block_ids = cached + self.pool.allocate(missing)
        sequence.num_named = len(cached)
        sequence.num_computed = len(cached) * BLOCK_SIZE
        sequence.num_charged = max(sequence.num_charged, sequence.num_computed)
        if sequence.started_at is None:
            sequence.started_at = now
            sequence.num_cached = sequence.num_computed
        self._running.append(sequence)
        self._num_running_of[sequence.request.tenant] += 1
        return True

    def _find_cached(self, sequence: Sequence) -> list[int]:
        """The cached blocks that the sequence begins with; at least one token is left, for logits to sample from."""
        if sequence.request.pooling == "mean":
            return []  # Every token's state is needed, and the cache has only keys and values.
        self._extend_digests(sequence)
        return self.pool.find(sequence.block_digests[: (len(sequence.token_ids) - 1) // BLOCK_SIZE])

    def _fits(self, turn: Turn, cached: list[int], evicted: Collection[Sequence] = ()) -> bool:
        """Whether the next sequence finds a slot and blocks, once `evicted` have given theirs up."""
        freed = self.pool.freed_by(block_id for each in evicted for block_id in each.owned_blocks)
        num_running = len(self._running) - len(evicted)
        num_free = self.pool.num_free + len(freed) - self.pool.num_free_of(cached) - len(freed.intersection(cached))
        # One spare block for each running sequence, since admitting into the last blocks would only preempt again.
        num_needed = blocks_needed(len(turn.sequence.token_ids)) - len(cached) + num_running
        if turn.sequence.request.priority == 0 or turn.is_out_of_turn or num_running == 0:
            return num_running < self.max_num_seqs and num_needed <= num_free
        return num_running < self.max_num_seqs - self._reserved_seqs and num_needed <= num_free - self._reserved_blocks

    def _preempt(self, sequence: Sequence) -> None:
        """Take the sequence's blocks; on its return, everything but cached blocks is recomputed."""
        assert not sequence.num_ahead, "a sequence gave way while a step computed its token"
        self.num_preemptions += 1
        sequence.num_preempted += 1
        self._running.remove(sequence)
        self._release(sequence)
        self._queues.push_front(sequence)

    def _owner(self, deadline: tuple[float, int, str]) -> Sequence | None:
        """The live sequence that a deadline was set for; None if it is gone."""
        _, order, stream_id = deadline
        sequence = self._live.get(stream_id)
        return sequence if sequence is not None and sequence.order == order else None

    def _drop_stale_deadlines(self) -> None:
        self._deadlines = [deadline for deadline in self._deadlines if self._owner(deadline) is not None]
        heapq.heapify(self._deadlines)

    def _release(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence that runs no more."""
        tenant = sequence.request.tenant
        self._num_running_of[tenant] -= 1
        if not self._num_running_of[tenant]:
            del self._num_running_of[tenant]
        self.pool.release(sequence.owned_blocks)
        sequence.block_ids = []
        sequence.num_named = sequence.num_computed = sequence.num_outlived = 0

    def _extend_digests(self, sequence: Sequence) -> None:
        """Name every block that the sequence's tokens fill, computed or not."""
        digests = sequence.block_digests
        while (len(digests) + 1) * BLOCK_SIZE <= len(sequence.token_ids):
            start = len(digests) * BLOCK_SIZE
            parent = digests[-1] if len(digests) > sequence.num_public else sequence.root_digest
            digests.append(chain_digest(parent, sequence.token_ids[start : start + BLOCK_SIZE]))

    def _name_full_blocks(self, sequence: Sequence, end: int) -> None:
        full = end // BLOCK_SIZE
        if full > len(sequence.block_digests):
            self._extend_digests(sequence)
        for i in range(sequence.num_named, full):
            self.pool.name(sequence.block_ids[i], sequence.block_digests[i])
        sequence.num_named = full

    def _give_up_outlived(self, sequence: Sequence, end: int) -> None:
        """Release the blocks before everything that the token after `end` sees; the cache can find them until they are
        reused."""
        if self._window is None:
            return
        num_outlived = max(end + 1 - self._window, 0) // BLOCK_SIZE
        self.pool.release(sequence.block_ids[sequence.num_outlived : num_outlived])
        sequence.num_outlived = num_outlived


def _num_missing(sequence: Sequence) -> int:
    """How many more blocks the sequence's next token needs."""
    return 0 if sequence.is_ending else blocks_needed(sequence.num_tokens) - len(sequence.block_ids)


def _place(sequence: Sequence) -> tuple[int, int]:
    return rank(sequence), sequence.order
