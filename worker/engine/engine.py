"""The engine: a step loop in its own thread, and the asyncio side that feeds it and reads from it."""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from itertools import count
from pathlib import Path
from weakref import WeakKeyDictionary

from kernels import gpu
from worker.engine.admission import check_for_gpu, check_request
from worker.engine.blocks import BLOCK_SIZE
from worker.engine.errors import (
    BestEffortShed,
    DeviceLost,
    EngineError,
    EngineStopped,
    InvalidRequest,
    QueueFull,
    UnknownAdapter,
)
from worker.engine.loop import StepLoop
from worker.engine.parts import EngineParts, load_parts
from worker.engine.prefix_cache import PublicPrompts
from worker.engine.request import EngineLoad, EngineRequest, TokenOutput
from worker.engine.settings import EngineSettings
from worker.engine.shedding import max_queued
from worker.engine.step_sizes import StepSizes
from worker.engine.stream import Bell, Deliveries, Delivery, TokenStream
from worker.lora.adapter import AdapterError, read_adapter

log = logging.getLogger("tiergate.engine")

_IDLE_TURN_S = 1.0


class Engine:
    """One model replica. Public methods may be called from any thread; `generate` from a running event loop."""

    def __init__(self, parts: EngineParts, settings: EngineSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._wake = threading.Condition()
        self._loop = StepLoop(parts, self._post_command)
        # Guarded by _wake: commands for the loop, and the streams of all live requests.
        self._inbox: list[Callable[[], None]] = []
        self._streams: dict[str, TokenStream] = {}
        self._unloading: set[str] = set()
        self._is_stopping = False
        self.is_broken = False
        self._thread: threading.Thread | None = None
        self._num_discarded = 0
        self._numbers = count()
        # Weak keys, so that an event loop that is gone takes its deliveries with it.
        self._deliveries: WeakKeyDictionary[asyncio.AbstractEventLoop, Deliveries] = WeakKeyDictionary()
        self.last_step_at = time.monotonic()
        self.max_model_len = parts.max_model_len
        self.vocab_size, self.hidden_size = parts.config.vocab_size, parts.config.hidden_size
        self.eos_token_ids = parts.config.eos_token_ids
        self.model_version = parts.model_version
        self.adapter_base = parts.adapter_base

    @classmethod
    def load(cls, settings: EngineSettings) -> "Engine":
        """Read the checkpoint and the adapters; raises CheckpointError or AdapterError, one line each."""
        return cls(load_parts(settings), settings)

    def share_prompts(self, prompts: list[list[int]]) -> None:
        """Let all tenants share the cached blocks of these prompt prefixes, instead of each caching its own."""
        self._loop.public_prompts = PublicPrompts(prompts)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def take_memory(self) -> None:
        """Take all memory that the KV cache may ever use, so that a shortage shows now and not under load."""
        await asyncio.to_thread(self._parts.runner.take_memory)

    async def stop(self) -> None:
        """End the loop after its current step; requests still alive fail with EngineStopped."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        await asyncio.to_thread(self._parts.lora.loader.close)
        await asyncio.to_thread(self._parts.runner.close)

    def generate(self, request: EngineRequest) -> TokenStream:
        """Queue a request and return the stream of its outputs. Raises EngineStopped, InvalidRequest, PromptTooLong,
        UnknownAdapter or QueueFull at once, in that order."""
        (stream,) = self.generate_all([[request]])
        return stream

    def generate_all(self, groups: list[list[EngineRequest]]) -> list[TokenStream]:
        """Queue several requests, or, with the errors of `generate`, none of them; see `JointStream`.

        The requests of a group have the same prompt, adapter and salt, so that the prompt is computed once.
        """
        requests = [request for group in groups for request in group]
        with self._wake:
            if self._is_stopping:
                raise EngineStopped()
            for request in requests:
                self._check(request)
            self._check_room(len(requests), requests[0].priority, is_begun=any(each.given_ids for each in requests))
            bell = Bell()
            ids_by_group = [[f"{request.request_id}#{next(self._numbers)}" for request in group] for group in groups]
            stream_ids = [stream_id for group_ids in ids_by_group for stream_id in group_ids]
            streams = [TokenStream(stream_id, self.abort, self._count_discarded, bell) for stream_id in stream_ids]
            self._streams.update(zip(stream_ids, streams, strict=True))
            now = time.monotonic()
            for group_ids, group in zip(ids_by_group, groups, strict=True):
                self._post(partial(self._loop.submit, group_ids, group, now))
        return streams

    def abort(self, stream_id: str) -> None:
        """Drop a request; its blocks are free before the next step. Unknown ids are ignored, since the request may just
        have ended."""
        with self._wake:
            if self._streams.pop(stream_id, None) is not None:
                self._post(partial(self._loop.abort, stream_id))

    def load_adapter(self, name: str, path: Path | str, *, is_replacing: bool = False) -> None:
        """Serve an adapter from now on. It is read and checked here, and loaded into a slot beside the steps, at the
        latest when a request needs it. Raises AdapterError, and then nothing has changed.

        is_replacing: replaces an adapter of that name, if there is one; its requests finish with the old adapter.
        """
        folder = Path(path)
        adapter = read_adapter(folder, self._parts.config, self._parts.dtype)

        def install() -> None:
            if name in self._parts.lora.names and not is_replacing:
                raise AdapterError(folder, f"an adapter named {name!r} is already loaded; unload it first")
            version, replaced = self._parts.lora.add(name, adapter, folder)
            if replaced is not None:
                self._loop.adapters.leave(replaced)
            self._loop.adapters.warm(version)

        self._call(install)

    def unload_adapter(self, name: str) -> None:
        """Take no new requests for the adapter; running ones finish with it. Raises UnknownAdapter."""

        def uninstall() -> None:
            if name not in self._parts.lora.names:
                raise UnknownAdapter(name)
            self._loop.adapters.leave(self._parts.lora.remove(name))

        # Refuses the adapter from now on: a request queued behind the unloading would find it gone.
        with self._wake:
            self._unloading.add(name)
        try:
            self._call(uninstall)
        finally:
            with self._wake:
                self._unloading.discard(name)

    def brief_load(self) -> tuple[int, int, int]:
        """Running, waiting, free blocks."""
        scheduler = self._parts.scheduler
        num_running = scheduler.num_running
        return num_running, max(len(self._streams) - num_running, 0), scheduler.pool.num_free

    def report(self) -> EngineLoad:
        scheduler, loop = self._parts.scheduler, self._loop
        num_running = scheduler.num_running
        return EngineLoad(
            num_running=num_running,
            num_waiting=max(len(self._streams) - num_running, 0),
            max_num_seqs=scheduler.max_num_seqs,
            max_waiting=self._settings.max_waiting,
            max_model_len=self.max_model_len,
            num_blocks=scheduler.pool.num_blocks,
            num_free_blocks=scheduler.pool.num_free,
            block_size=BLOCK_SIZE,
            adapters=self._parts.lora.names,
            resident_adapters=self._parts.lora.resident_names,
            num_adapter_slots=self._parts.lora.residency.num_slots,
            model_version=self.model_version,
            last_step_at=self.last_step_at,
            prompt_tokens_total=loop.prompt_tokens_total,
            cached_tokens_total=loop.cached_tokens_total,
            completion_tokens_total=loop.completion_tokens_total,
            discarded_tokens_total=self._num_discarded,
            num_preemptions_total=scheduler.num_preemptions,
            num_failed_steps_total=loop.num_failed_steps_total,
            num_nan_rows_total=loop.num_nan_rows_total,
        )

    @property
    def step_sizes(self) -> StepSizes:
        return self._loop.step_sizes

    @property
    def cache_dtype(self) -> str:
        return str(self._parts.dtype).removeprefix("torch.")

    @property
    def kernels_refused(self) -> dict[str, str]:
        """GPU operations that are left to torch, and why; see `kernels.gpu`."""
        return gpu.refused()

    def adapters_in_use(self) -> tuple[frozenset[str], frozenset[str]]:
        """The adapters of running requests, and those of waiting ones."""
        sequences = [*self._parts.scheduler.snapshot(), *self._loop.adapters.waiting()]
        running = [each.request.adapter for each in sequences if each.block_ids]
        waiting = [each.request.adapter for each in sequences if not each.block_ids]
        return frozenset(filter(None, running)), frozenset(filter(None, waiting))

    # Callers' side, under _wake.

    def _check(self, request: EngineRequest) -> None:
        check_request(
            request,
            vocab_size=self._parts.config.vocab_size,
            max_model_len=self.max_model_len,
            eos_token_ids=self._parts.eos_token_ids,
        )
        if self._parts.is_gpu:
            check_for_gpu(request)
        if request.adapter is None:
            return
        if request.adapter in self._unloading or request.adapter not in self._parts.lora.names:
            raise UnknownAdapter(request.adapter)

    def _check_room(self, num_requests: int, priority: int, *, is_begun: bool) -> None:
        """is_begun: a client has read part of the answer, so the request is not shed as best-effort work is."""
        scheduler, max_waiting = self._parts.scheduler, self._settings.max_waiting
        if num_requests > scheduler.max_num_seqs + max_waiting:
            raise InvalidRequest(
                f"{num_requests} answers at once are more than this worker's queue takes; ask for fewer", param="n"
            )
        num_waiting = len(self._streams) - scheduler.num_running
        # Requests that the next step will put into free slots are not queued, unless a lack of blocks prevents it.
        free_slots = 0 if scheduler.num_waiting else scheduler.max_num_seqs - scheduler.num_running
        num_queued = num_waiting + num_requests - free_slots
        retry_after_s = self._loop.rate.retry_after_s(num_waiting)
        if num_queued > max_waiting:
            raise QueueFull(retry_after_s)
        if is_begun or not self._settings.sheds_best_effort:
            return
        is_kv_tight = scheduler.is_kv_tight
        if num_queued > max_queued(priority, max_waiting, is_kv_tight=is_kv_tight):
            raise BestEffortShed(retry_after_s)

    def _post_command(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._post(command)

    def _post(self, command: Callable[[], None]) -> None:
        self._inbox.append(command)
        self._wake.notify()

    def _call(self, function: Callable[[], None]) -> None:
        """Run a function between two steps and raise its error, or EngineStopped when there are no more steps."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                function()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        with self._wake:
            is_running = self._thread is not None and not self._is_stopping
            if is_running:
                self._post(run)
        if not is_running:
            run()
        while not wait([done], _IDLE_TURN_S).done:
            if self.is_broken:
                raise EngineStopped()
        done.result()

    def _count_discarded(self, num_tokens: int) -> None:
        self._num_discarded += num_tokens

    # The engine's thread.

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except DeviceLost as lost:
            log.critical("%s", lost)
            self._break()
        except Exception:
            # A bug of ours outside a step's computation.
            log.critical("the engine's loop broke", exc_info=True)
            self._break()

    def _break(self) -> None:
        """Fail all requests and take no more."""
        with self._wake:
            self._is_stopping = True
            # A stream that already has another error among the outputs ends with that one, which comes first.
            self._loop.outputs += [(stream_id, EngineStopped()) for stream_id in self._streams]
        self._flush()
        self.is_broken = True

    def _turn(self) -> bool:
        """Run the commands posted meanwhile, then one step. Returns False when the engine is to stop."""
        with self._wake:
            while not (self._inbox or self._is_stopping or self._loop.has_work):
                self.last_step_at = time.monotonic()
                if not self._wake.wait(_IDLE_TURN_S):
                    self._loop.check_blocks()
                    if self._loop.adapters:
                        # A step without work still ends requests whose deadline has passed.
                        break
            commands, self._inbox = self._inbox, []
            is_stopping = self._is_stopping
        for command in commands:
            command()
        if is_stopping:
            self._loop.fail_all(EngineStopped())
        else:
            self._loop.step()
        self._flush()
        self.last_step_at = time.monotonic()
        return not is_stopping

    def _flush(self) -> None:
        """Hand a step's outputs to the event loops that wait for them, in one call for each loop."""
        outputs, self._loop.outputs = self._loop.outputs, []
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[Delivery]] = defaultdict(list)
        with self._wake:
            for stream_id, output in outputs:
                stream = self._stream_for(stream_id, output)
                if stream is not None:
                    by_loop[stream.loop].append((stream, output))
                elif isinstance(output, TokenOutput):
                    self._num_discarded += len(output.token_ids)
        for loop, batch in by_loop.items():
            self._deliver(loop, batch)

    def _stream_for(self, stream_id: str, output: TokenOutput | EngineError) -> TokenStream | None:
        """The output's stream, forgotten after the last output; None when it was closed meanwhile."""
        is_last = isinstance(output, EngineError) or output.finish_reason is not None
        return self._streams.pop(stream_id, None) if is_last else self._streams.get(stream_id)

    def _deliver(self, loop: asyncio.AbstractEventLoop, batch: list[Delivery]) -> None:
        try:
            loop.call_soon_threadsafe(self._deliveries.setdefault(loop, Deliveries()).add, batch)
        except RuntimeError:
            # The loop is closed, so nobody is left to read.
            for stream, _ in batch:
                self.abort(stream.stream_id)
