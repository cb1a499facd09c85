"""The answer to a request: its choices as they grow, and their combined usage and accounting."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from protocol.accounting import Accounting, joint_reason
from protocol.responses import Usage, make_usage
from worker.engine.request import EngineRequest, TokenLogprobs, TokenOutput
from worker.engine.stream import JointStream
from worker.server.choice import Choice, Piece
from worker.server.intake import Job
from worker.server.ledger import hour_of
from worker.server.replica import Replica
from worker.server.waiting import Waiting, announce_waiting


class Answer:
    """The constructor submits the requests and raises the engine's refusal. Close the answer, or read it to its end."""

    def __init__(self, replica: Replica, job: Job) -> None:
        self._replica = replica
        self._job = job
        streams = replica.engine.generate_all(_groups(job))
        self._tokens = JointStream(streams)
        requests = [(request, prompt.echo) for prompt in job.prompts for request in prompt.requests]
        tokenizer = replica.bundle.tokenizer
        self.choices = [
            Choice(job, i, request, echo, tokenizer, stream)
            for i, ((request, echo), stream) in enumerate(zip(requests, streams, strict=True))
        ]
        self._hour_s = hour_of(job.request_id)
        self._is_prompt_noted = False
        self.prompt_logprobs: dict[int, Sequence[TokenLogprobs]] = {}
        self._last_at = [job.arrived_at] * len(self.choices)
        self._first_at = [job.arrived_at] * len(self.choices)
        for choice in self.choices:
            replica.positions.enter(choice, choice.request.priority)

    async def pieces(self) -> AsyncGenerator[list[Piece] | Waiting]:
        """Pieces that arrived together, of one or more choices. Raises EngineError when the engine gives one up."""
        try:
            async with aclosing(announce_waiting(self._tokens, self._place)) as arrivals:
                async for arrival in arrivals:
                    if isinstance(arrival, Waiting):
                        yield arrival
                    elif not arrival:
                        yield Waiting(0)
                    else:
                        yield [piece for i, output in arrival for piece in self._take(self.choices[i], output)]
                        if self.is_finished:
                            return
        finally:
            self.close()

    def close(self) -> None:
        """The engine drops unfinished choices within one step."""
        self._tokens.close()
        for choice in self.choices:
            self._replica.positions.leave(choice)

    def discard(self, num_tokens: int) -> None:
        """Count ids that were taken from the engine but sent to nobody."""
        self._tokens.discard(num_tokens)
        if num_tokens:
            self._replica.ledger.note(self._job.tenant, self._hour_s, num_discarded=num_tokens)

    def note_told(self, num_tokens: int) -> None:
        """Record that num_tokens more ids were sent to the caller."""
        if num_tokens or not self._is_prompt_noted:
            num_prompt = 0 if self._is_prompt_noted else self._job.num_prompt
            self._is_prompt_noted = True
            self._replica.ledger.note(self._job.tenant, self._hour_s, num_prompt=num_prompt, num_told=num_tokens)

    @property
    def is_finished(self) -> bool:
        return all(choice.finish_reason is not None for choice in self.choices)

    @property
    def usage(self) -> Usage:
        return self.usage_at(self.num_completion)

    def usage_at(self, num_completion: int) -> Usage:
        """The usage at the point where num_completion tokens, over all choices, had arrived."""
        num_thought = sum(choice.num_thought for choice in self.choices)
        return make_usage(
            self._job.num_prompt,
            num_completion,
            cached_tokens=self._num_cached,
            reasoning_tokens=None if self._job.reasoning is None else min(num_thought, num_completion),
        )

    @property
    def accounting(self) -> Accounting:
        lasts = [choice.last for choice in self.choices if choice.last is not None]
        return Accounting(
            prompt_tokens=self._job.num_prompt,
            cached_prompt_tokens=self._num_cached,
            completion_tokens=self.num_completion,
            queue_ms=round(min((last.queue_ms for last in lasts), default=0.0), 3),
            compute_ms=round(max((last.compute_ms for last in lasts), default=0.0), 3),
            worker_id=self._replica.worker_id,
            finish_reason=joint_reason(choice.finish_reason or "abort" for choice in self.choices),
        )

    @property
    def num_completion(self) -> int:
        """Tokens of all choices so far."""
        return sum(choice.num_completion for choice in self.choices)

    @property
    def num_made(self) -> int:
        """Completion tokens that this worker generated, without those given by another replica."""
        return sum(choice.num_made for choice in self.choices)

    @property
    def _num_cached(self) -> int:
        """Prompt tokens that each prompt's first choice found cached; other choices find what the first computed."""
        firsts = self.choices[:: self._job.n]
        return sum(
            min(choice.last.cached_tokens, len(choice.request.prompt_ids))
            for choice in firsts
            if choice.last is not None
        )

    def _place(self) -> int:
        num_waiting = self._replica.engine.report().num_waiting
        return self._replica.positions.position(self.choices[0], num_waiting=num_waiting)

    def _take(self, choice: Choice, output: TokenOutput) -> list[Piece]:
        is_first = choice.last is None
        prompt = choice.index // self._job.n
        if output.prompt_logprobs:
            # Prompt log-probabilities arrive with a prompt's first choice; its other choices begin later.
            self.prompt_logprobs[prompt] = output.prompt_logprobs
        pieces = choice.take(output, output.prompt_logprobs or self.prompt_logprobs.get(prompt, ()))
        num_made = sum(len(piece.token_ids) for piece in pieces if not piece.is_given)
        self._observe(choice, output, num_made, is_first=is_first)
        return pieces

    def _observe(self, choice: Choice, output: TokenOutput, num_tokens: int, *, is_first: bool) -> None:
        metrics, now = self._replica.metrics, time.monotonic()
        if is_first:
            self._first_at[choice.index] = now
            self._replica.positions.leave(choice)
            if sum(each.last is not None for each in self.choices) == 1:
                metrics.first_token_s.observe(now - self._job.arrived_at)
                metrics.queue_s.observe(output.queue_ms / 1e3)
        else:
            for _ in range(num_tokens):
                metrics.inter_token_s.observe((now - self._last_at[choice.index]) / num_tokens)
        self._last_at[choice.index] = now
        if choice.finish_reason is not None:
            self._observe_end(choice, choice.finish_reason, output, now)

    def _observe_end(self, choice: Choice, reason: str, output: TokenOutput, now: float) -> None:
        metrics, first_at = self._replica.metrics, self._first_at[choice.index]
        prefill_s = max(first_at - self._job.arrived_at - output.queue_ms / 1e3, 0.0)
        metrics.count_finished(reason)
        metrics.prefill_s.observe(prefill_s)
        metrics.decode_s.observe(now - first_at)
        metrics.inference_s.observe(prefill_s + now - first_at)
        metrics.prompt_tokens.observe(len(choice.request.prompt_ids))
        metrics.generation_tokens.observe(choice.num_made)
        metrics.params_max_tokens.observe(choice.request.sampling.max_tokens)
        if self.is_finished:
            metrics.request_s.observe(now - self._job.arrived_at)
            metrics.params_n.observe(self._job.n)


def _groups(job: Job) -> list[list[EngineRequest]]:
    """Requests grouped by the prompt whose prefill they share. Requests that need log-probabilities of ids given by
    another replica stay apart, since those ids differ by answer."""
    if job.has_logprobs and any(request.given_ids for prompt in job.prompts for request in prompt.requests):
        return [[request] for prompt in job.prompts for request in prompt.requests]
    return [prompt.requests for prompt in job.prompts]
