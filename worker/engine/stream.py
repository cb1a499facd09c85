"""The hand-off from the engine's thread to the event loop that waits for a request's tokens."""

import asyncio
from collections import deque
from collections.abc import Callable

from worker.engine.errors import EngineError
from worker.engine.request import TokenOutput

Delivery = tuple["TokenStream", TokenOutput | EngineError]
_AT_ONCE = 8
SILENCE_S = 5.0
"""A stream may be silent this long: an evicted request, or one behind a long step, makes no tokens for a while."""


class Bell:
    """Wakes the one task that waits for any of several streams."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, limit_s: float | None = None) -> None:
        """Wait until the bell rings, `limit_s` at most."""
        self._waiter = self.loop.create_future()
        timer = None if limit_s is None else self.loop.call_later(limit_s, self.ring)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


class TokenStream:
    """An async iterator over one request's outputs, for one consumer.

    Outputs that piled up while the consumer was away arrive merged. Closing the stream, or cancelling the task that
    waits for it, aborts the request; `close` is synchronous so that a `finally` can call it. `JointStream` waits for
    several streams that share a bell.
    """

    def __init__(
        self, stream_id: str, abort: Callable[[str], None], discard: Callable[[int], None], bell: Bell
    ) -> None:
        self.stream_id = stream_id
        self.bell = bell
        self._abort = abort
        self._discard = discard
        self._outputs: deque[TokenOutput | EngineError] = deque()
        self._is_done = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.bell.loop

    @property
    def is_done(self) -> bool:
        """Whether the last output was taken or the stream was closed."""
        return self._is_done

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> TokenOutput:
        if self._is_done:
            raise StopAsyncIteration
        while (output := self.take()) is None:
            try:
                await self.bell.wait()
            except asyncio.CancelledError:
                self.close()
                raise
        return output

    def take(self) -> TokenOutput | None:
        """The outputs since the last call, merged; None if there were none. Raises the error that ended the stream."""
        if not self._outputs:
            return None
        output = self._outputs.popleft()
        if isinstance(output, EngineError):
            self._is_done = True
            raise output
        while self._outputs and isinstance(following := self._outputs[0], TokenOutput):
            output = _merge(output, following)
            self._outputs.popleft()
        self._is_done = output.finish_reason is not None
        return output

    def close(self) -> None:
        """Give up the request unless it is over; tokens that were generated and never taken count as discarded."""
        if self._is_done:
            return
        self._is_done = True
        self._abort(self.stream_id)
        self._discard(sum(len(output.token_ids) for output in self._outputs if isinstance(output, TokenOutput)))
        self._outputs.clear()

    def discard(self, num_tokens: int) -> None:
        """Count ids that were taken but sent to nobody, such as those after a stop string."""
        self._discard(num_tokens)

    async def aclose(self) -> None:
        self.close()

    def put(self, output: TokenOutput | EngineError) -> None:
        """Call in the loop's thread."""
        if self._is_done:
            self._discard(len(output.token_ids) if isinstance(output, TokenOutput) else 0)
            return
        self._outputs.append(output)
        self.bell.ring()


class JointStream:
    """An async iterator over the outputs of several streams that share a bell, each with its stream's index.

    It ends with the last stream, and raises the first EngineError. Then, and when the waiting task is cancelled, all
    streams are closed. After the first output it yields an empty list whenever nothing came for `silence_s`.
    """

    def __init__(self, streams: list[TokenStream], *, silence_s: float = SILENCE_S) -> None:
        self._streams = streams
        self._silence_s = silence_s
        self._has_begun = False

    def __aiter__(self) -> "JointStream":
        return self

    async def __anext__(self) -> list[tuple[int, TokenOutput]]:
        while not all(stream.is_done for stream in self._streams):
            outputs = self._take()
            if outputs:
                self._has_begun = True
                return outputs
            rings_at = self._streams[0].bell.loop.time() + self._silence_s
            try:
                await self._streams[0].bell.wait(self._silence_s if self._has_begun else None)
            except asyncio.CancelledError:
                self.close()
                raise
            if self._has_begun and self._streams[0].bell.loop.time() >= rings_at:
                return self._take()
        raise StopAsyncIteration

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def discard(self, num_tokens: int) -> None:
        """Count ids of any of the streams that were taken but sent to nobody."""
        self._streams[0].discard(num_tokens)

    def _take(self) -> list[tuple[int, TokenOutput]]:
        outputs: list[tuple[int, TokenOutput]] = []
        try:
            for i, stream in enumerate(self._streams):
                output = stream.take()
                if output is not None:
                    outputs.append((i, output))
        except EngineError:
            for i, output in outputs:
                self._streams[i].discard(len(output.token_ids))
            self.close()
            raise
        return outputs


class Deliveries:
    """Outputs on their way into one event loop. They are handed out a few at a time, so that a request that arrives
    while dozens of streams get a token does not wait for all of them at each of its turns."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()

    def add(self, batch: list[Delivery]) -> None:
        """Take a step's outputs; call in the loop's thread. If the loop is behind, it gets the rest of the last step at
        once; streams merge what piled up."""
        is_idle = not self._waiting
        while self._waiting:
            self._put_next()
        # First tokens stand last in a step, and clients wait longest for these.
        self._waiting.extend(reversed(batch))
        if is_idle:
            self._hand_out()

    def _hand_out(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            self._put_next()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._hand_out)

    def _put_next(self) -> None:
        stream, output = self._waiting.popleft()
        stream.put(output)


def _merge(first: TokenOutput, second: TokenOutput) -> TokenOutput:
    return TokenOutput(
        token_ids=first.token_ids + second.token_ids,
        finish_reason=second.finish_reason,
        cached_tokens=second.cached_tokens,
        queue_ms=second.queue_ms,
        compute_ms=second.compute_ms,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs,
    )
