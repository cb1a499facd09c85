"""What runs in the next step: continuous batching under a token budget, decodes first, then chunks of prefill.

Pure: no torch, no clock, no threads. Classes are strict (0 before 3), tenants inside a class share fairly.
"""

import heapq
from collections.abc import Iterator

from worker.engine.blocks import BLOCK_SIZE, BlockPool, blocks_needed
from worker.engine.fairness import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST, FairQueue
from worker.engine.prefix_cache import chain_digest
from worker.engine.sequence import Chunk, Sequence

NUM_CLASSES = 4
_MAX_STALE_DEADLINES = 1000


class Scheduler:
    """Owns every live sequence and its blocks. One step is: schedule, compute, advance; finish or abort in between."""

    def __init__(self, pool: BlockPool, *, max_num_seqs: int, max_batched_tokens: int) -> None:
        assert max_batched_tokens >= max_num_seqs, "every running sequence must be able to decode in each step"
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.num_preemptions = 0
        self._waiting = [FairQueue() for _ in range(NUM_CLASSES)]
        self._running: list[Sequence] = []
        self._live: dict[str, Sequence] = {}
        self._deadlines: list[tuple[float, int, str]] = []
        self._next_order = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._live) - len(self._running)

    def live(self) -> Iterator[Sequence]:
        return iter(self._live.values())

    def snapshot(self) -> tuple[Sequence, ...]:
        """The live sequences of one moment; any thread may ask."""
        return tuple(self._live.values())

    def get(self, request_id: str) -> Sequence | None:
        return self._live.get(request_id)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, whose window must fit into the pool."""
        request = sequence.request
        assert request.request_id not in self._live
        sequence.order = self._next_order
        self._next_order += 1
        self._live[request.request_id] = sequence
        self._waiting[request.priority].push(sequence)
        if request.deadline_at is not None:
            heapq.heappush(self._deadlines, (request.deadline_at, sequence.order, request.request_id))
            if len(self._deadlines) > 2 * len(self._live) + _MAX_STALE_DEADLINES:
                self._drop_stale_deadlines()

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished, failed or aborted sequence and free its blocks at once."""
        del self._live[sequence.request.request_id]
        if sequence in self._running:
            self._running.remove(sequence)
            self._release(sequence)
        else:
            self._waiting[sequence.request.priority].remove(sequence)

    def expired(self, now: float) -> list[Sequence]:
        """Live sequences whose deadline has passed; the caller removes them."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = self._owner(heapq.heappop(self._deadlines))
            if sequence is not None:
                found.append(sequence)
        return found

    def schedule(self, now: float) -> list[Chunk]:
        """The next step's work, blocks provided; empty when there is nothing to do."""
        self._provide_decode_blocks()
        self._yield_to_a_higher_class()
        budget = self.max_batched_tokens
        chunks: list[Chunk] = []
        for sequence in self._running:
            if sequence.num_uncomputed == 1:
                chunks.append(Chunk(sequence, 1))
                budget -= 1
        for sequence in self._running:
            if sequence.num_uncomputed > 1 and budget > 0:
                chunks.append(Chunk(sequence, min(sequence.num_uncomputed, budget)))
                budget -= chunks[-1].num_tokens
        while budget > 0 and self._admit(now):
            sequence = self._running[-1]
            chunks.append(Chunk(sequence, min(sequence.num_uncomputed, budget)))
            budget -= chunks[-1].num_tokens
        # Best first, so that blocks are taken from the worst, which stand at the end.
        self._running.sort(key=_rank)
        return chunks

    def advance(self, chunks: list[Chunk]) -> None:
        """Count a computed step: tokens served, and full blocks that can now be found by their content."""
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.num_computed += chunk.num_tokens
            self._name_full_blocks(sequence)
            is_output = sequence.num_computed > sequence.num_prompt
            cost = OUTPUT_TOKEN_COST if is_output and chunk.num_tokens == 1 else PROMPT_TOKEN_COST
            request = sequence.request
            self._waiting[request.priority].charge(request.tenant, cost * chunk.num_tokens / request.weight)

    def check(self) -> None:
        """Assert that every block is free, cached or owned, once."""
        self.pool.check([sequence.block_ids for sequence in self._running])
        assert all(not sequence.block_ids for sequence in self._live.values() if sequence not in self._running)

    def _provide_decode_blocks(self) -> None:
        """Every running sequence gets room for its next token, the worst giving way to the best when blocks run out."""
        i = 0
        while i < len(self._running):
            sequence = self._running[i]
            missing = blocks_needed(len(sequence.token_ids)) - len(sequence.block_ids)
            while missing > self.pool.num_free and self._running[-1] is not sequence:
                self._preempt(self._running[-1])
            if missing > self.pool.num_free:
                self._preempt(sequence)
                return
            if missing > 0:
                sequence.block_ids += self.pool.allocate(missing)
            i += 1

    def _admit(self, now: float) -> bool:
        """Move the next waiting sequence to the running, with the blocks of all its tokens; False when none fits."""
        sequence = self._next_waiting()
        if sequence is None:
            return False
        cached = self._find_cached(sequence)
        if not self._fits(sequence, cached):
            return False
        missing = blocks_needed(len(sequence.token_ids)) - len(cached)
        self._waiting[sequence.request.priority].pop()
        self.pool.share(cached)
        sequence.block_ids = cached + self.pool.allocate(missing)
        sequence.num_named = len(cached)
        sequence.num_computed = len(cached) * BLOCK_SIZE
        if sequence.started_at is None:
            sequence.started_at = now
            sequence.num_cached = sequence.num_computed
        self._running.append(sequence)
        return True

    def _next_waiting(self) -> Sequence | None:
        return next((queue.peek() for queue in self._waiting if len(queue)), None)

    def _find_cached(self, sequence: Sequence) -> list[int]:
        """The cached blocks that its tokens begin with; at least one token is left, to have logits to sample from."""
        if sequence.request.pooling == "mean":
            return []  # Every token's state is wanted, and the cache has only keys and values.
        self._extend_digests(sequence)
        return self.pool.find(sequence.block_digests[: (len(sequence.token_ids) - 1) // BLOCK_SIZE])

    def _fits(self, sequence: Sequence, cached: list[int]) -> bool:
        if len(self._running) >= self.max_num_seqs:
            return False
        missing = blocks_needed(len(sequence.token_ids)) - len(cached)
        # One spare block for each that runs: admitting into the last blocks would only preempt again.
        return missing + len(self._running) <= self.pool.num_free - self.pool.num_free_of(cached)

    def _yield_to_a_higher_class(self) -> None:
        """When the next to be admitted finds no slot or no blocks, running ones of lower classes make room."""
        sequence = self._next_waiting()
        if sequence is None:
            return
        lower = [each for each in self._running if each.request.priority > sequence.request.priority]
        obtainable = self.pool.num_free + sum(len(each.block_ids) for each in lower)
        num_staying = len(self._running) - len(lower)
        if blocks_needed(len(sequence.token_ids)) + num_staying > obtainable:
            return
        while lower and not self._fits(sequence, self._find_cached(sequence)):
            self._preempt(lower.pop())

    def _preempt(self, sequence: Sequence) -> None:
        """Take its blocks; on its return it is recomputed, cached blocks excepted."""
        self.num_preemptions += 1
        self._running.remove(sequence)
        self._release(sequence)
        self._waiting[sequence.request.priority].push_front(sequence)

    def _owner(self, deadline: tuple[float, int, str]) -> Sequence | None:
        """The live sequence that a deadline was set for, if it is still the one."""
        _, order, request_id = deadline
        sequence = self._live.get(request_id)
        return sequence if sequence is not None and sequence.order == order else None

    def _drop_stale_deadlines(self) -> None:
        self._deadlines = [deadline for deadline in self._deadlines if self._owner(deadline) is not None]
        heapq.heapify(self._deadlines)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_named = sequence.num_computed = 0

    def _extend_digests(self, sequence: Sequence) -> None:
        """Name every block that the sequence's tokens fill, computed or not."""
        digests = sequence.block_digests
        while (len(digests) + 1) * BLOCK_SIZE <= len(sequence.token_ids):
            start = len(digests) * BLOCK_SIZE
            parent = digests[-1] if digests else sequence.root_digest
            digests.append(chain_digest(parent, sequence.token_ids[start : start + BLOCK_SIZE]))

    def _name_full_blocks(self, sequence: Sequence) -> None:
        full = sequence.num_computed // BLOCK_SIZE
        if full > len(sequence.block_digests):
            self._extend_digests(sequence)
        for i in range(sequence.num_named, full):
            self.pool.name(sequence.block_ids[i], sequence.block_digests[i])
        sequence.num_named = full


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.priority, sequence.order
