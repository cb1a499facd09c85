"""One answer as it grows: the engine's token ids become text and tool calls; stop strings end it."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.accounting import Accounting
from protocol.messages import ToolCall
from protocol.responses import FinishReason, Usage, make_usage
from text.detokenizer import IncrementalDetokenizer
from text.stop import StopMatcher
from text.tool_calls import ToolCallParser
from worker.engine.errors import EngineError
from worker.engine.request import TokenOutput
from worker.server.intake import Job
from worker.server.replica import Replica
from worker.server.waiting import Waiting, announce_waiting

if TYPE_CHECKING:
    from worker.engine.stream import TokenStream


@dataclass(frozen=True, kw_only=True)
class Piece:
    """New ids and what became certain with them. Parts may be empty while the ids already count."""

    token_ids: list[int]
    parts: list[str | ToolCall] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class Answer:
    """Submitted when made: raises what the engine refuses it for. Close it, or read it to its end."""

    def __init__(self, replica: Replica, job: Job) -> None:
        self._replica = replica
        self._job = job
        self._detokenizer = IncrementalDetokenizer(replica.bundle.tokenizer, is_continuation=not job.is_chat)
        self._stop = StopMatcher(job.stops)
        self._tools = ToolCallParser() if job.has_tools else None
        self._has_calls = False
        self._last: TokenOutput | None = None
        self._last_at = job.arrived_at
        self.num_completion = 0
        self.finish_reason: FinishReason | None = None
        self._tokens: TokenStream = replica.engine.generate(job.request)
        replica.line.enter(job.request.request_id, job.request.priority)

    async def pieces(self) -> AsyncGenerator[Piece | Waiting]:
        """Raises EngineError when the engine gives the request up."""
        try:
            async with aclosing(announce_waiting(self._tokens, self._place)) as outputs:
                async for output in outputs:
                    if isinstance(output, Waiting):
                        yield output
                        continue
                    piece = self._take(output)
                    self._observe(output, len(piece.token_ids))
                    yield piece
                    if piece.finish_reason is not None:
                        return
        except EngineError as error:
            self._replica.metrics.count_failed(error.code or "engine_error")
            raise
        finally:
            self.close()

    def close(self) -> None:
        """The engine drops the request within one step, unless it is over."""
        self._tokens.close()
        self._replica.line.leave(self._job.request.request_id)

    @property
    def usage(self) -> Usage:
        cached = self._last.cached_tokens if self._last else 0
        return make_usage(self._job.num_prompt, self.num_completion, cached_tokens=cached)

    @property
    def accounting(self) -> Accounting:
        last = self._last or TokenOutput(token_ids=[])
        return Accounting(
            prompt_tokens=self._job.num_prompt,
            cached_prompt_tokens=last.cached_tokens,
            completion_tokens=self.num_completion,
            queue_ms=last.queue_ms,
            compute_ms=last.compute_ms,
            worker_id=self._replica.worker_id,
            finish_reason=self.finish_reason or "abort",
        )

    def _place(self) -> int:
        num_waiting = self._replica.engine.report().num_waiting
        return self._replica.line.position(self._job.request.request_id, num_waiting=num_waiting)

    def _take(self, output: TokenOutput) -> Piece:
        """Token by token, so that the tokens after a stop string do not count however the outputs were merged."""
        # The id that ended the answer counts, but has no text.
        num_silent = 1 if output.finish_reason == "stop" else 0
        num_visible = len(output.token_ids) - num_silent
        parts, num_taken = [], 0
        for token_id in output.token_ids[:num_visible]:
            num_taken += 1
            parts.append(self._find_stop(self._detokenizer.add([token_id]), self.num_completion + num_taken))
            if self._stop.matched is not None:
                break
        else:
            num_taken += num_silent
            if output.finish_reason is not None:
                parts.append(self._stop.add(self._detokenizer.flush()))
        self.num_completion += num_taken
        self._tokens.discard(len(output.token_ids) - num_taken)
        reason = "stop" if self._stop.matched is not None else output.finish_reason
        if reason is not None:
            parts.append(self._stop.flush())
        found = self._find_calls("".join(parts), is_last=reason is not None)
        self.finish_reason = "tool_calls" if reason == "stop" and self._has_calls else reason
        return Piece(token_ids=output.token_ids[:num_taken], parts=found, finish_reason=self.finish_reason)

    def _find_stop(self, text: str, num_tokens: int) -> str:
        """Like the ids that end an answer, stop strings count only after min_tokens."""
        return text if num_tokens <= self._job.request.sampling.min_tokens else self._stop.add(text)

    def _find_calls(self, text: str, *, is_last: bool) -> list[str | ToolCall]:
        if self._tools is None:
            return [text] if text else []
        found = self._tools.add(text) + (self._tools.flush() if is_last else [])
        self._has_calls = self._has_calls or any(isinstance(part, ToolCall) for part in found)
        return found

    def _observe(self, output: TokenOutput, num_tokens: int) -> None:
        metrics, now = self._replica.metrics, time.monotonic()
        if self._last is None:
            self._replica.line.leave(self._job.request.request_id)
            metrics.first_token_s.observe(now - self._job.arrived_at)
            metrics.queue_s.observe(output.queue_ms / 1e3)
        else:
            for _ in range(num_tokens):
                metrics.inter_token_s.observe((now - self._last_at) / num_tokens)
        self._last, self._last_at = output, now
        if self.finish_reason is not None:
            metrics.request_s.observe(now - self._job.arrived_at)
            metrics.count_finished(self.finish_reason)
