"""The hand-off from the engine's thread to the event loop that waits for a request's tokens."""

import asyncio
from collections import deque
from collections.abc import Callable

from worker.engine.errors import EngineError
from worker.engine.request import TokenOutput

Delivery = tuple["TokenStream", TokenOutput | EngineError]


class TokenStream:
    """An async iterator over one request's outputs, for one consumer.

    Outputs that piled up while the consumer was away arrive merged. Closing it, or cancelling the task that waits in
    it, aborts the request; `close` is synchronous so that a `finally` can call it.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None], discard: Callable[[int], None]) -> None:
        self.request_id = request_id
        self.loop = asyncio.get_running_loop()
        self._abort = abort
        self._discard = discard
        self._outputs: deque[TokenOutput | EngineError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_done = False

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> TokenOutput:
        if self._is_done:
            raise StopAsyncIteration
        if not self._outputs:
            await self._wait()
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
        """Give the request up unless it is over; what was generated and never taken counts as discarded."""
        if self._is_done:
            return
        self._is_done = True
        self._abort(self.request_id)
        self._discard(sum(len(output.token_ids) for output in self._outputs if isinstance(output, TokenOutput)))
        self._outputs.clear()

    def discard(self, num_tokens: int) -> None:
        """Count ids that were taken but went to nobody, such as those after a stop string."""
        self._discard(num_tokens)

    async def aclose(self) -> None:
        self.close()

    def put(self, output: TokenOutput | EngineError) -> None:
        """In the loop's thread."""
        if self._is_done:
            self._discard(len(output.token_ids) if isinstance(output, TokenOutput) else 0)
            return
        self._outputs.append(output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._waiter = None


def deliver(batch: list[Delivery]) -> None:
    """One call of the loop for all outputs of a step."""
    for stream, output in batch:
        stream.put(output)


def _merge(first: TokenOutput, second: TokenOutput) -> TokenOutput:
    return TokenOutput(
        token_ids=first.token_ids + second.token_ids,
        finish_reason=second.finish_reason,
        cached_tokens=second.cached_tokens,
        queue_ms=second.queue_ms,
        compute_ms=second.compute_ms,
    )
