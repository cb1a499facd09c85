"""The engine's own thread: requests in, one step after the other, outputs out. Nothing here is thread-safe."""

import logging
import time
from collections.abc import Callable
from uuid import uuid4

from msgspec.structs import replace

from protocol.responses import FinishReason
from worker.engine.adapters import AdapterQueue
from worker.engine.batch import order_chunks
from worker.engine.errors import DeadlineExceeded, EngineError, StepFailed, UnknownAdapter
from worker.engine.parts import EngineParts
from worker.engine.pooling import unit_vector
from worker.engine.prefill import PrefillPace
from worker.engine.prefix_cache import PublicPrompts, root_digest, salted_digest
from worker.engine.request import EngineRequest, TokenOutput
from worker.engine.sampler import Sampled
from worker.engine.sequence import Chunk, Sequence
from worker.engine.service_rate import ServiceRate
from worker.engine.siblings import Siblings

log = logging.getLogger("tiergate.engine")

Output = tuple[str, TokenOutput | EngineError]


class StepLoop:
    """Holds every live request. `outputs` collects (stream id, output) until the caller takes them."""

    def __init__(self, parts: EngineParts, post: Callable[[Callable[[], None]], None]) -> None:
        """post: has a function called between two steps, from any thread."""
        self._parts = parts
        self.adapters = AdapterQueue(parts.lora, post=post, begin=self._begin, fail=self._fail_unbegun)
        self._scheduler = parts.scheduler
        self._siblings = Siblings()
        self.public_prompts = PublicPrompts()
        self._pace = PrefillPace()
        self._was_checked = True
        self.outputs: list[Output] = []
        self.rate = ServiceRate()
        self.prompt_tokens_total = 0
        self.cached_tokens_total = 0
        self.completion_tokens_total = 0
        self.num_failed_steps_total = 0
        self.num_nan_rows_total = 0

    @property
    def has_work(self) -> bool:
        """What waits for an adapter alone is no work."""
        return self._scheduler.num_running + self._scheduler.num_waiting > 0

    def submit(self, stream_ids: list[str], requests: list[EngineRequest], arrived_at: float) -> None:
        """Requests with the same prompt, adapter and salt, and a stream's id for each. The first computes the prompt,
        and the others then share its blocks; only the first may ask for prompt_logprobs."""
        adapter, version = requests[0].adapter, None
        if adapter is not None:
            try:
                version = self._parts.lora.find(adapter)
            except KeyError:
                # Unloaded between the check at submission and now.
                self.outputs += [(stream_id, UnknownAdapter(adapter)) for stream_id in stream_ids]
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
            )
            for stream_id, request in zip(stream_ids, requests, strict=True)
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
        """The root of the names of the request's blocks, and the names of the public blocks that it begins with."""
        version = self._parts.model_version
        if request.sampling.prompt_logprobs:
            # A salt of its own: tokens found in the cache are not computed, and then have no probabilities.
            salt = f"{request.cache_salt} {uuid4()}"
            return root_digest(salt=salt, model_version=version, adapter_digest=adapter_digest), []
        root = root_digest(salt=request.cache_salt, model_version=version, adapter_digest=adapter_digest)
        public = self.public_prompts.names(request.prompt_ids, model_version=version, adapter_digest=adapter_digest)
        return salted_digest(root, public[-1]) if public else root, public

    def abort(self, stream_id: str) -> None:
        """Free the stream's blocks. Unknown ids are ignored, since it may just have ended."""
        sequence = self._scheduler.get(stream_id)
        if sequence is not None:
            self._drop(sequence)
            return
        waiting = self._siblings.take(stream_id) or self.adapters.take(stream_id)
        if waiting is not None:
            self.adapters.release(waiting)

    def fail_all(self, error: EngineError) -> None:
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
        """Compute what the scheduler chooses. When that raises, each request is tried alone, so that a request fails
        only when its own computation breaks."""
        started_at = time.monotonic()
        self._was_checked = False
        for sequence in self.adapters.take_expired(started_at):
            self._fail_unbegun(sequence, DeadlineExceeded())
        # Repeated, since siblings that waited for an expired leader are queued only when it fails.
        while expired := self._scheduler.expired(started_at):
            for sequence in expired:
                self._fail(sequence, DeadlineExceeded())
        chunks = order_chunks(self._scheduler.schedule(started_at, max_prefill=self._pace.max_tokens))
        if not chunks:
            return
        num_together = self._scheduler.num_together
        num_decodes = sum(chunk.is_decode for chunk in chunks)
        num_prefill = sum(chunk.num_tokens for chunk in chunks) - num_decodes
        try:
            self._compute(chunks, started_at)
        except Exception:
            log.exception("a step of %d requests failed; each is tried alone", len(chunks))
            self.num_failed_steps_total += 1
            for chunk in chunks:
                self._compute_alone(chunk)
        else:
            self._pace.record(
                num_decodes=num_decodes,
                num_prefill=num_prefill,
                num_together=num_together,
                duration_s=time.monotonic() - started_at,
            )
        self.rate.record_step(time.monotonic() - started_at)

    def _compute(self, chunks: list[Chunk], started_at: float) -> None:
        """Everything that may raise comes before any change, so that the same chunks can be computed again."""
        finishing = [chunk.sequence for chunk in chunks if chunk.is_last and chunk.sequence.request.pooling is None]
        outputs = self._parts.runner.run(chunks)
        tokens = self._parts.sampler.choose(outputs.logits, finishing)
        duration_s = time.monotonic() - started_at
        for chunk in chunks:
            chunk.sequence.compute_s += duration_s
        self._scheduler.advance(chunks)
        for sequence, scored in outputs.prompt_logprobs.items():
            sequence.prompt_logprobs += scored
        for sequence, token in zip(finishing, tokens, strict=True):
            self._accept(sequence, token)
        for sequence, pooled in outputs.pooled.items():
            sequence.pooled = pooled
            if not sequence.num_uncomputed:
                self._finish_embedding(sequence)

    def _compute_alone(self, chunk: Chunk) -> None:
        try:
            self._compute([chunk], time.monotonic())
        except Exception as error:
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
        self.outputs.append((sequence.stream_id, _make_output(sequence, [], "stop", embedding)))

    def _accept(self, sequence: Sequence, sampled: Sampled | None) -> None:
        """Append a sampled token and output it; None means that the logits were not finite."""
        if sampled is None:
            self._fail_not_finite(sequence)
            return
        is_first = len(sequence.token_ids) == sequence.num_begun
        if is_first:
            self._count_prompt(sequence)
            self._begin_siblings(sequence)
        # An answer without any token, or one that another replica ended, is over before this token.
        reason = self._finish_reason(sequence)
        taken = [sampled] if reason is None else []
        if taken:
            sequence.token_ids.append(sampled.token_id)
            self.completion_tokens_total += 1
            reason = self._finish_reason(sequence)
        if reason is not None:
            self._drop(sequence)
            self.rate.record_end()
        output = _make_output(sequence, [each.token_id for each in taken], reason)
        if sequence.request.sampling.num_logprobs is not None:
            output = replace(
                output,
                logprobs=tuple(each.logprobs for each in taken if each.logprobs is not None),
                prompt_logprobs=tuple(sequence.prompt_logprobs) if is_first else (),
            )
        self.outputs.append((sequence.stream_id, output))

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        sampling, last = sequence.request.sampling, sequence.token_ids[-1]
        is_end = last in sampling.stop_token_ids or (last in self._parts.eos_token_ids and not sampling.ignore_eos)
        if is_end and sequence.num_output:
            return "stop"
        return "length" if sequence.num_output >= sampling.max_tokens else None

    def _begin_siblings(self, sequence: Sequence) -> None:
        """For when the leader's prompt is computed, or never will be."""
        for sibling in self._siblings.release(sequence):
            self._scheduler.add(sibling)

    def _count_prompt(self, sequence: Sequence) -> None:
        self.prompt_tokens_total += sequence.num_prompt
        self.cached_tokens_total += sequence.num_cached

    def _fail_not_finite(self, sequence: Sequence) -> None:
        self.num_nan_rows_total += 1
        self._discard_blocks(sequence)
        self._fail(sequence, StepFailed("what the model computed is not finite (NaN or infinite)"))

    def _discard_blocks(self, sequence: Sequence) -> None:
        """Remove its blocks' names, since its keys may be NaN and must not be found in the cache.

        Blocks with other owners keep their names. If these owners are poisoned too, the last of them removes the names.
        """
        pool, outlived = self._scheduler.pool, sequence.block_ids[: sequence.num_outlived]
        # Blocks that it gave up and that are free may still hold what it wrote.
        pool.unname(pool.unshared(sequence.owned_blocks) + pool.free_of(outlived))

    def _fail(self, sequence: Sequence, error: EngineError) -> None:
        self._drop(sequence)
        self.outputs.append((sequence.stream_id, error))

    def _fail_unbegun(self, sequence: Sequence, error: EngineError) -> None:
        self.outputs.append((sequence.stream_id, error))

    def _drop(self, sequence: Sequence) -> None:
        self._begin_siblings(sequence)
        self._scheduler.remove(sequence)
        self.adapters.release(sequence)


def _make_output(
    sequence: Sequence, token_ids: list[int], reason: FinishReason | None, embedding: bytes | None = None
) -> TokenOutput:
    return TokenOutput(
        token_ids=token_ids,
        finish_reason=reason,
        cached_tokens=sequence.num_cached,
        queue_ms=sequence.queue_s * 1e3,
        compute_ms=sequence.compute_s * 1e3,
        embedding=embedding,
    )
