"""The engine: a step loop in a thread of its own, and the asyncio side that feeds it and reads from it."""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from protocol.responses import FinishReason
from worker.engine.admission import check_request
from worker.engine.assembly import EngineParts, assemble
from worker.engine.batch import order_chunks
from worker.engine.blocks import BLOCK_SIZE
from worker.engine.errors import (
    DeadlineExceeded,
    EngineError,
    EngineStopped,
    InvalidRequest,
    QueueFull,
    StepFailed,
    UnknownAdapter,
)
from worker.engine.prefix_cache import root_digest
from worker.engine.request import EngineLoad, EngineRequest, TokenOutput
from worker.engine.sequence import Chunk, Sequence
from worker.engine.service_rate import ServiceRate
from worker.engine.settings import EngineSettings
from worker.engine.stream import Delivery, TokenStream, deliver
from worker.lora.adapter import AdapterError, read_adapter

log = logging.getLogger("tiergate.engine")

_IDLE_TURN_S = 1.0


class Engine:
    """One model replica. Public methods may be called from any thread; `generate` from a running event loop."""

    def __init__(self, parts: EngineParts, settings: EngineSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._scheduler = parts.scheduler
        self._rate = ServiceRate()
        self._wake = threading.Condition()
        # Guarded by _wake: what the loop is to do next, and the streams of all live requests.
        self._inbox: list[Callable[[], None]] = []
        self._streams: dict[str, TokenStream] = {}
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._outbox: defaultdict[asyncio.AbstractEventLoop, list[Delivery]] = defaultdict(list)
        self._was_checked = True
        self.last_step_at = time.monotonic()
        self.max_model_len = parts.max_model_len
        self.model_version = parts.model_version
        self.prompt_tokens_total = 0
        self.cached_tokens_total = 0
        self.completion_tokens_total = 0
        self.discarded_tokens_total = 0
        self.num_failed_steps_total = 0

    @classmethod
    def load(cls, settings: EngineSettings) -> "Engine":
        """Read the checkpoint and the adapters; raises CheckpointError or AdapterError, one line each."""
        return cls(assemble(settings), settings)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the loop after its current step; requests still alive fail with EngineStopped."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def generate(self, request: EngineRequest) -> TokenStream:
        """Queue a request; its outputs are the stream's. Raises what `errors` names, at once."""
        parts = self._parts
        check_request(request, vocab_size=parts.config.vocab_size, max_model_len=self.max_model_len)
        stream = TokenStream(request.request_id, self.abort, self._count_discarded)
        with self._wake:
            if self._is_stopping:
                raise EngineStopped()
            if request.adapter is not None and request.adapter not in parts.lora.names:
                raise UnknownAdapter(request.adapter)
            if request.request_id in self._streams:
                raise InvalidRequest(f"the request id {request.request_id!r} is in use")
            self._check_room()
            self._streams[request.request_id] = stream
            self._post(partial(self._submit, request, time.monotonic()))
        return stream

    def abort(self, request_id: str) -> None:
        """Drop a request; its blocks are free before the next step. Unknown ids are ignored: it may just have ended."""
        with self._wake:
            if self._streams.pop(request_id, None) is not None:
                self._post(partial(self._abort, request_id))

    def load_adapter(self, name: str, path: Path | str) -> None:
        """Make an adapter resident; blocks until it is. Raises AdapterError."""
        folder = Path(path)
        adapter = read_adapter(folder, self._parts.config, self._parts.dtype)

        def install() -> None:
            if name in self._parts.lora.names:
                raise AdapterError(folder, f"an adapter named {name!r} is already loaded; unload it first")
            self._parts.lora.add(name, adapter)

        self._call(install)

    def unload_adapter(self, name: str) -> None:
        """Take no new requests for it; running ones finish. Raises UnknownAdapter."""

        def uninstall() -> None:
            if name not in self._parts.lora.names:
                raise UnknownAdapter(name)
            self._parts.lora.remove(name)

        self._call(uninstall)

    def report(self) -> EngineLoad:
        scheduler, pool = self._scheduler, self._scheduler.pool
        num_running = scheduler.num_running
        return EngineLoad(
            num_running=num_running,
            num_waiting=max(len(self._streams) - num_running, 0),
            max_num_seqs=scheduler.max_num_seqs,
            max_waiting=self._settings.max_waiting,
            max_model_len=self.max_model_len,
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            block_size=BLOCK_SIZE,
            adapters=self._parts.lora.names,
            model_version=self.model_version,
            last_step_at=self.last_step_at,
            prompt_tokens_total=self.prompt_tokens_total,
            cached_tokens_total=self.cached_tokens_total,
            completion_tokens_total=self.completion_tokens_total,
            discarded_tokens_total=self.discarded_tokens_total,
            num_preemptions_total=scheduler.num_preemptions,
            num_failed_steps_total=self.num_failed_steps_total,
        )

    # Callers' side, under _wake.

    def _check_room(self) -> None:
        scheduler = self._scheduler
        num_waiting = len(self._streams) - scheduler.num_running
        # Slots that the next step will fill are not the queue's, unless blocks keep them from being filled.
        free_slots = 0 if scheduler.num_waiting else scheduler.max_num_seqs - scheduler.num_running
        if num_waiting - free_slots >= self._settings.max_waiting:
            raise QueueFull(self._rate.retry_after_s(num_waiting, time.monotonic()))

    def _post(self, command: Callable[[], None]) -> None:
        self._inbox.append(command)
        self._wake.notify()

    def _call(self, function: Callable[[], None]) -> None:
        """Run between two steps, and pass on its exception."""
        if self._thread is None:
            return function()
        done: Future[None] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except Exception as error:
                done.set_exception(error)

        with self._wake:
            self._post(run)
        done.result()

    def _count_discarded(self, num_tokens: int) -> None:
        self.discarded_tokens_total += num_tokens

    # The loop's side.

    def _run(self) -> None:
        while self._turn():
            pass
        for sequence in list(self._scheduler.live()):
            self._fail(sequence, EngineStopped())
        self._flush()

    def _turn(self) -> bool:
        """One step with what was asked meanwhile; False when the engine is to stop."""
        with self._wake:
            while not (self._inbox or self._is_stopping or self._has_work()):
                self.last_step_at = time.monotonic()
                if not self._wake.wait(_IDLE_TURN_S):
                    self._check_blocks()
            commands, self._inbox = self._inbox, []
        for command in commands:
            command()
        if not self._is_stopping:
            self._step()
        self._flush()
        self.last_step_at = time.monotonic()
        return not self._is_stopping

    def _has_work(self) -> bool:
        return self._scheduler.num_running + self._scheduler.num_waiting > 0

    def _check_blocks(self) -> None:
        """Idle for a while: the time to verify that no block was lost."""
        if not self._was_checked:
            self._scheduler.check()
            self._was_checked = True

    def _submit(self, request: EngineRequest, arrived_at: float) -> None:
        slot, digest = -1, ""
        if request.adapter is not None:
            try:
                slot, digest = self._parts.lora.acquire(request.adapter)
            except KeyError:
                self._emit(request.request_id, UnknownAdapter(request.adapter))
                return
        root = root_digest(salt=request.cache_salt, model_version=self.model_version, adapter_digest=digest)
        sequence = Sequence(request, list(request.prompt_ids), len(request.prompt_ids), root, arrived_at, slot)
        self._scheduler.add(sequence)
        self._was_checked = False

    def _abort(self, request_id: str) -> None:
        sequence = self._scheduler.get(request_id)
        if sequence is not None:
            self._drop(sequence)

    def _step(self) -> None:
        started_at = time.monotonic()
        for sequence in self._scheduler.expired(started_at):
            self._fail(sequence, DeadlineExceeded())
        chunks = order_chunks(self._scheduler.schedule(started_at))
        if not chunks:
            return
        finishing = [chunk.sequence for chunk in chunks if chunk.is_last]
        try:
            tokens = self._parts.sampler.choose(self._parts.runner.run(chunks), finishing)
        except Exception as error:
            self._fail_step(chunks, error)
            return
        now = time.monotonic()
        for chunk in chunks:
            chunk.sequence.compute_s += now - started_at
        self._scheduler.advance(chunks)
        for sequence, token in zip(finishing, tokens, strict=True):
            self._accept(sequence, token, now)

    def _accept(self, sequence: Sequence, token: int | None, now: float) -> None:
        """Append a sampled token and tell the stream; None means that the logits were not finite."""
        if token is None:
            self._discard_blocks(sequence)
            self._fail(sequence, StepFailed("the logits are not finite (NaN or infinite)"))
            return
        if sequence.num_output == 0:
            self.prompt_tokens_total += sequence.num_prompt
            self.cached_tokens_total += sequence.num_cached
        sequence.token_ids.append(token)
        self.completion_tokens_total += 1
        reason = self._finish_reason(sequence, token)
        output = TokenOutput(
            token_ids=[token],
            finish_reason=reason,
            cached_tokens=sequence.num_cached,
            queue_ms=sequence.queue_s * 1e3,
            compute_ms=sequence.compute_s * 1e3,
        )
        if reason is not None:
            self._drop(sequence)
            self._rate.record(now)
        self._emit(sequence.request.request_id, output)

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        sampling = sequence.request.sampling
        if token in sampling.stop_token_ids or (token in self._parts.eos_token_ids and not sampling.ignore_eos):
            return "stop"
        is_full = sequence.num_output >= sampling.max_tokens or len(sequence.token_ids) >= self.max_model_len
        return "length" if is_full else None

    def _fail_step(self, chunks: list[Chunk], error: Exception) -> None:
        log.exception("a step of %d requests failed", len(chunks))
        self.num_failed_steps_total += 1
        for chunk in chunks:
            self._discard_blocks(chunk.sequence)
            self._fail(chunk.sequence, StepFailed(f"{type(error).__name__}: {error}"))

    def _discard_blocks(self, sequence: Sequence) -> None:
        """Its keys may be NaN: nobody may hit them, and padding must not read them, since 0 * NaN is NaN."""
        self._scheduler.pool.unname(sequence.block_ids)
        self._parts.runner.clear(sequence.block_ids)

    def _fail(self, sequence: Sequence, error: EngineError) -> None:
        self._drop(sequence)
        self._emit(sequence.request.request_id, error)

    def _drop(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        if sequence.adapter_slot >= 0:
            self._parts.lora.release(sequence.adapter_slot)

    def _emit(self, request_id: str, output: TokenOutput | EngineError) -> None:
        is_last = isinstance(output, EngineError) or output.finish_reason is not None
        with self._wake:
            stream = self._streams.pop(request_id, None) if is_last else self._streams.get(request_id)
        if stream is not None:
            self._outbox[stream.loop].append((stream, output))
        elif isinstance(output, TokenOutput):
            self.discarded_tokens_total += len(output.token_ids)

    def _flush(self) -> None:
        for loop, batch in self._outbox.items():
            try:
                loop.call_soon_threadsafe(deliver, batch)
            except RuntimeError:
                # The loop is closed: nobody is left to read.
                for stream, _ in batch:
                    self.abort(stream.request_id)
        self._outbox.clear()
