"""The work of the engine's thread: requests in, step after step, outputs out. Nothing here is thread-safe."""

import logging
import time
from collections.abc import Callable
from uuid import uuid4

from msgspec.structs import replace

from worker.engine.adapters import AdapterQueue
from worker.engine.answer import append, finish_reason, make_output, start_matcher
from worker.engine.batch import order_chunks
from worker.engine.errors import (
    DeadlineExceeded,
    DeviceLost,
    EngineError,
    GrammarLimit,
    InvalidRequest,
    NoTokenLeft,
    StepFailed,
    UnknownAdapter,
)
from worker.engine.flight import Flight, Load
from worker.engine.forbidden import leaves_nothing, limiting_field
from worker.engine.parts import EngineParts
from worker.engine.pooling import unit_vector
from worker.engine.prefill import PrefillPace
from worker.engine.prefix_cache import PublicPrompts, root_digest, salted_digest
from worker.engine.request import EngineRequest, TokenOutput
from worker.engine.sampler import Sampled
from worker.engine.sequence import Chunk, Sequence
from worker.engine.service_rate import ServiceRate
from worker.engine.siblings import Siblings
from worker.engine.step_sizes import StepSizes

log = logging.getLogger("tiergate.engine")

Output = tuple[str, TokenOutput | EngineError]


class StepLoop:
    """Holds every live request. `outputs` collects (stream id, output) until the caller takes them.

    If the runner computes beside this thread, a step is launched before the previous one is finished; `_flight` is
    then the step that was launched last.
    """

    def __init__(self, parts: EngineParts, post: Callable[[Callable[[], None]], None]) -> None:
        """post: runs a function between two steps; callable from any thread."""
        self._parts = parts
        self.adapters = AdapterQueue(parts.lora, post=post, begin=self._begin, fail=self._fail_unbegun)
        self._scheduler = parts.scheduler
        self._siblings = Siblings()
        self.public_prompts = PublicPrompts()
        self._pace = PrefillPace()
        self._was_checked = True
        self._flight: Flight | None = None
        self._finished_at = 0.0
        self.outputs: list[Output] = []
        self.rate = ServiceRate()
        self.step_sizes = StepSizes()
        self.prompt_tokens_total = 0
        self.cached_tokens_total = 0
        self.completion_tokens_total = 0
        self.num_failed_steps_total = 0
        self.num_nan_rows_total = 0

    @property
    def has_work(self) -> bool:
        """Requests that only wait for an adapter are not work."""
        return self._flight is not None or self._scheduler.num_running + self._scheduler.num_waiting > 0

    def submit(self, stream_ids: list[str], requests: list[EngineRequest], arrived_at: float) -> None:
        """requests: with the same prompt, adapter and salt; stream_ids: one for each. The first request computes the
        prompt, and the others then share its blocks; only the first may ask for prompt_logprobs."""
        adapter, version = requests[0].adapter, None
        if adapter is not None:
            try:
                version = self._parts.lora.find(adapter)
            except KeyError:
                # Unloaded between the check at submission and now.
                self.outputs += [(stream_id, UnknownAdapter(adapter)) for stream_id in stream_ids]
                return
        try:
            matchers = [start_matcher(request) for request in requests]
        except InvalidRequest as error:
            self.outputs += [(stream_id, error) for stream_id in stream_ids]
            return
        root, public = self._begin_names(requests[0], "" if version is None else version.digest)
        group = [
            Sequence(
                stream_id,
                request,
                [*request.prompt_ids, *request.given_ids],
                len(request.prompt_ids),
                root,
                arrived_at,
                version=version,
                block_digests=list(public),
                num_public=len(public),
                matcher=matcher,
            )
            for stream_id, request, matcher in zip(stream_ids, requests, matchers, strict=True)
        ]
        if version is None:
            self._begin(group)
        else:
            self.adapters.submit(group)

    def _begin(self, group: list[Sequence]) -> None:
        first, *others = group
        self._scheduler.add(first)
        if others:
            self._siblings.hold(first, others)

    def _begin_names(self, request: EngineRequest, adapter_digest: str) -> tuple[bytes, list[bytes]]:
        """The root of the request's block names, and the names of the public blocks that the prompt begins with."""
        version = self._parts.model_version
        if request.sampling.prompt_logprobs is not None:
            # A unique salt: tokens found in the cache are not computed, and so have no probabilities.
            salt = f"{request.cache_salt} {uuid4()}"
            return root_digest(salt=salt, model_version=version, adapter_digest=adapter_digest), []
        root = root_digest(salt=request.cache_salt, model_version=version, adapter_digest=adapter_digest)
        public = self.public_prompts.names(request.prompt_ids, model_version=version, adapter_digest=adapter_digest)
        return salted_digest(root, public[-1]) if public else root, public

    def abort(self, stream_id: str) -> None:
        """Free the stream's blocks. Unknown ids are ignored, since the stream may just have ended."""
        sequence = self._scheduler.get(stream_id)
        if sequence is not None:
            self._drop(sequence)
            return
        waiting = self._siblings.take(stream_id) or self.adapters.take(stream_id)
        if waiting is not None:
            self.adapters.release(waiting)

    def fail_all(self, error: EngineError) -> None:
        self._settle()
        for sequence in self.adapters.take_all():
            self._fail_unbegun(sequence, error)
        for sequence in self._siblings.release_all():
            self._scheduler.add(sequence)
        for sequence in list(self._scheduler.live()):
            self._fail(sequence, error)

    def check_blocks(self) -> None:
        """Verify that no block was lost, once after each stretch of work; for idle moments."""
        if not self._was_checked:
            self._scheduler.check()
            self._was_checked = True

    def step(self) -> None:
        """Launch the chunks that the scheduler chooses, and finish the step launched before. If the launch raises, each
        request is tried alone, so that a request fails only when its own computation breaks."""
        started_at = time.monotonic()
        self._was_checked = False
        self._expire(started_at)
        if self._must_settle():
            self._settle()
        chunks = order_chunks(self._scheduler.schedule(started_at, max_prefill=self._pace.max_tokens))
        load = Load.of(chunks, self._scheduler.num_together)
        previous, self._flight = self._flight, None
        try:
            if chunks:
                self._flight = self._launch(chunks, started_at, load)
        except Exception as error:
            if self._parts.runner.is_lost:
                raise self._lost([chunk.sequence for chunk in chunks], previous, error) from error
            log.exception("a step of %d requests failed; each is tried alone", len(chunks))
            self.num_failed_steps_total += 1
            self._finish(previous)
            for chunk in chunks:
                self._compute_alone(chunk)
            self.rate.record_step(time.monotonic() - started_at)
            return
        self._finish(previous)
        if self._flight is not None and self._flight.pending.is_done:
            self._settle()

    def _expire(self, started_at: float) -> None:
        for sequence in self.adapters.take_expired(started_at):
            self._fail_unbegun(sequence, DeadlineExceeded())
        # Repeated, since siblings that waited for an expired leader are queued only when it fails.
        while expired := self._scheduler.expired(started_at):
            for sequence in expired:
                self._fail(sequence, DeadlineExceeded())

    def _must_settle(self) -> bool:
        """Whether the launched step must end before the next one is chosen, since choosing or preparing it needs the
        result."""
        if self._flight is None:
            return False
        return any(each.needs_host for each in self._flight.sequences) or self._scheduler.must_settle()

    def _launch(self, chunks: list[Chunk], started_at: float, load: Load | None) -> Flight:
        """All that may raise comes before any change, so that the same chunks can be launched again."""
        pending = self._parts.runner.launch(chunks)
        return Flight(self._scheduler.launch(chunks), pending, started_at, load)

    def _settle(self) -> None:
        flight, self._flight = self._flight, None
        self._finish(flight)

    def _finish(self, flight: Flight | None) -> None:
        """Take the results of a launched step; another one may have been launched since."""
        if flight is None:
            return
        try:
            result = flight.pending.wait()
        except Exception as error:
            newer = [] if self._flight is None else self._flight.sequences
            raise self._lost(newer, flight, error) from error
        now = time.monotonic()
        duration_s = now - max(flight.started_at, self._finished_at)
        self._finished_at = now
        for sequence, blocks in flight.kept:
            self._scheduler.pool.release(blocks)
            self.adapters.release(sequence)
        self._scheduler.advance(flight.advances)
        for advance in flight.advances:
            advance.sequence.compute_s += duration_s
        for sequence, scored in result.prompt_logprobs.items():
            sequence.prompt_logprobs += scored
        yielding = [advance.sequence for advance in flight.advances if advance.yields]
        for sequence, token in zip(yielding, result.tokens, strict=True):
            if self._is_live(sequence):
                self._accept(sequence, token)
        for sequence, pooled in result.pooled.items():
            sequence.pooled = pooled
            if self._is_live(sequence) and not sequence.num_uncomputed:
                self._finish_embedding(sequence)
        if flight.load is not None:
            self.step_sizes.record(flight.load.num_decodes + flight.load.num_prefill)
            self._pace.record(
                num_decodes=flight.load.num_decodes,
                num_prefill=flight.load.num_prefill,
                num_together=flight.load.num_together,
                duration_s=duration_s,
            )
            self.rate.record_step(duration_s)

    def _lost(self, sequences: list[Sequence], flight: Flight | None, error: Exception) -> DeviceLost:
        """Fails the requests that were being computed; the caller ends all other live ones."""
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        for sequence in dict.fromkeys([*sequences, *([] if flight is None else flight.sequences)]):
            if self._is_live(sequence):
                self.outputs.append((sequence.stream_id, StepFailed(reason)))
        return DeviceLost(f"the device is lost, and only a new process can use it again: {reason}")

    def _is_live(self, sequence: Sequence) -> bool:
        """False once the sequence has ended while a launched step was still computing it."""
        return self._scheduler.get(sequence.stream_id) is sequence

    def _compute_alone(self, chunk: Chunk) -> None:
        """Compute one chunk of a failed launch. The step launched before it may have ended the request."""
        if not self._is_live(chunk.sequence):
            return
        try:
            self._finish(self._launch([chunk], time.monotonic(), None))
        except DeviceLost:
            raise
        except Exception as error:
            if self._parts.runner.is_lost:
                raise self._lost([chunk.sequence], None, error) from error
            log.warning("request %s failed: %s", chunk.sequence.stream_id, error)
            self._discard_blocks(chunk.sequence)
            self._fail(chunk.sequence, StepFailed(f"{type(error).__name__}: {error}"))

    def _finish_embedding(self, sequence: Sequence) -> None:
        embedding = unit_vector(sequence.pooled)
        if embedding is None:
            self._fail_not_finite(sequence)
            return
        self._count_prompt(sequence)
        self._drop(sequence)
        self.rate.record_end()
        self.outputs.append((sequence.stream_id, make_output(sequence, [], "stop", embedding)))

    def _accept(self, sequence: Sequence, sampled: Sampled | None) -> None:
        """Append a sampled token and output it. sampled: None if the logits were not finite or no token is allowed.

        An answer that has begun ends, instead of failing, when no token is allowed or its grammar hits a limit: its
        tokens are billed.
        """
        if sampled is None and not (sequence.num_output and self._is_stuck(sequence)):
            self._fail_without_token(sequence)
            return
        is_first = len(sequence.token_ids) == sequence.num_begun
        if is_first:
            self._count_prompt(sequence)
            self._begin_siblings(sequence)
        # An answer with max_tokens 0, or one whose given ids end it, is over before this token.
        reason = finish_reason(sequence, self._parts.eos_token_ids)
        token_ids: list[int] = []
        if sampled is None:
            reason = reason or "length"
        elif reason is None:
            token_ids, reason = append(sequence, sampled.token_id, self._parts.eos_token_ids)
            if sequence.matcher is not None and sequence.matcher.error:
                # Beyond its limit, the grammar vouches for no token.
                del sequence.token_ids[-len(token_ids) :]
                if not sequence.num_output:
                    self._fail_without_token(sequence)
                    return
                sequence.matcher.give_up()
                token_ids, reason = [], "length"
            self.completion_tokens_total += len(token_ids)
        if reason is not None:
            self._drop(sequence)
            self.rate.record_end()
        output = make_output(sequence, token_ids, reason)
        if sampled is not None and sampled.logprobs is not None and token_ids:
            output = replace(output, logprobs=(sampled.logprobs,))
        if is_first and sequence.prompt_logprobs:
            output = replace(output, prompt_logprobs=tuple(sequence.prompt_logprobs))
        self.outputs.append((sequence.stream_id, output))

    def _begin_siblings(self, sequence: Sequence) -> None:
        """Queue the siblings once their leader's prompt is computed, or never will be."""
        for sibling in self._siblings.release(sequence):
            self._scheduler.add(sibling)

    def _count_prompt(self, sequence: Sequence) -> None:
        self.prompt_tokens_total += sequence.num_prompt
        self.cached_tokens_total += sequence.num_cached

    def _is_stuck(self, sequence: Sequence) -> bool:
        """Whether no token may come, whatever the model computes."""
        matcher = sequence.matcher
        if matcher is not None and matcher.error:
            matcher.give_up()
            return True
        return leaves_nothing(sequence, self._parts.eos_token_ids)

    def _fail_without_token(self, sequence: Sequence) -> None:
        matcher = sequence.matcher
        if matcher is not None and matcher.error:
            matcher.give_up()
            self._fail(sequence, GrammarLimit(matcher.error))
        elif leaves_nothing(sequence, self._parts.eos_token_ids):
            self._fail(sequence, NoTokenLeft(limiting_field(sequence.request.sampling)))
        else:
            self._fail_not_finite(sequence)

    def _fail_not_finite(self, sequence: Sequence) -> None:
        self.num_nan_rows_total += 1
        self._discard_blocks(sequence)
        self._fail(sequence, StepFailed("what the model computed is not finite (NaN or infinite)"))

    def _discard_blocks(self, sequence: Sequence) -> None:
        """Remove the names of the sequence's blocks, since its keys may be NaN and must not be found in the cache.

        Blocks with other owners keep their names. If these owners are poisoned too, the last of them removes the names.
        """
        pool, outlived = self._scheduler.pool, sequence.block_ids[: sequence.num_outlived]
        # Free blocks that the sequence gave up may still hold what it wrote.
        pool.unname(pool.unshared(sequence.owned_blocks) + pool.free_of(outlived))

    def _fail(self, sequence: Sequence, error: EngineError) -> None:
        self._drop(sequence)
        self.outputs.append((sequence.stream_id, error))

    def _fail_unbegun(self, sequence: Sequence, error: EngineError) -> None:
        self.outputs.append((sequence.stream_id, error))

    def _drop(self, sequence: Sequence) -> None:
        self._begin_siblings(sequence)
        is_computed = self._flight is not None and self._flight.holds(sequence)
        if is_computed and self._flight is not None:
            self._flight.keep(sequence, self._scheduler.pool)
        self._scheduler.remove(sequence)
        if not is_computed:
            self.adapters.release(sequence)
