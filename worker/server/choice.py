"""One of a request's answers as it grows: token ids become text and tool calls; stop strings end it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from protocol.responses import FinishReason
from text.detokenizer import IncrementalDetokenizer
from text.reasoning import MARKS, Thought
from text.stop import StopMatcher
from text.tokenizer import Tokenizer
from text.tool_calls.parts import Part
from worker.engine.request import EngineRequest, TokenLogprobs, TokenOutput
from worker.server.calls import AnswerCalls
from worker.server.intake import Job
from worker.server.logprobs import ScoredToken, ScoredTokens, score_prompt
from worker.server.thoughts import AnswerThoughts

if TYPE_CHECKING:
    from worker.engine.stream import TokenStream


@dataclass(frozen=True, kw_only=True)
class Piece:
    """New ids of the choice `index`, and the text and calls (possibly none) that became certain with them.

    scored: the tokens whose text begins in the parts, if log-probabilities are wanted.
    is_given: another replica generated the ids and reported them.
    """

    index: int
    token_ids: list[int]
    parts: list[Part | Thought] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    is_given: bool = False


class Choice:
    """echo: text that the answer begins with: the prompt's, or that of a chat's last message."""

    def __init__(
        self,
        job: Job,
        index: int,
        request: EngineRequest,
        echo: str | None,
        tokenizer: Tokenizer,
        tokens: "TokenStream",
    ) -> None:
        self.index = index
        self.request = request
        self.num_completion = 0
        self.finish_reason: FinishReason | None = None
        self.last: TokenOutput | None = None
        self._tokens = tokens
        self._echo = echo
        self._wants_logprobs = request.sampling.num_logprobs is not None
        self._is_chat = job.is_chat
        is_continuation = job.goes_on or (not job.is_chat and echo is None)
        special = () if job.display.skips_special else map(tokenizer.token, tokenizer.special_token_ids)
        marks = (*(job.calls.marks if job.calls else ()), *(MARKS[job.reasoning] if job.reasoning else ()))
        shown = {*marks, *filter(None, special)}
        self._detokenizer = IncrementalDetokenizer(tokenizer, is_continuation=is_continuation, shown=shown)
        self._includes_stop = job.display.includes_stop
        self._stop = StopMatcher(job.stops, is_included=self._includes_stop)
        self._calls = AnswerCalls(job.calls)
        self._thoughts = AnswerThoughts(job.reasoning, tokenizer, request.prompt_ids)
        is_held_back = job.calls is not None or job.reasoning is not None
        is_single = job.calls is not None and job.calls.is_single
        self._goes_by_token = is_single or job.display.shows_ids or (is_held_back and self._wants_logprobs)
        self._scored = ScoredTokens(len(echo or ""))

    @property
    def num_thought(self) -> int:
        """Tokens of the choice's thoughts."""
        return self._thoughts.num_tokens

    @property
    def num_made(self) -> int:
        """Tokens that this worker generated."""
        return max(self.num_completion - len(self.request.given_ids), 0)

    def take(self, output: TokenOutput, prompt_logprobs: Sequence[TokenLogprobs]) -> list[Piece]:
        """prompt_logprobs: of this choice's prompt, followed by those of the given ids, if wanted and known."""
        is_first, self.last = self.last is None, output
        pieces = self._replay(output, prompt_logprobs) if is_first else []
        for one in self._apart(output):
            if self.finish_reason is None:
                pieces.append(self._take(one, prompt_logprobs, is_first=is_first and not pieces))
            else:
                self._tokens.discard(len(one.token_ids))
        return pieces

    def _apart(self, output: TokenOutput) -> list[TokenOutput]:
        """Split a merged output into single tokens where merging would matter.

        Scored tokens beside text that may become a call wait for the next part, and so do ids that are shown. Without
        the split, merging would decide which of them the client already has, and a replica that continues from the ids
        alone must know that. Nor do tokens after the only call count.
        """
        if not self._goes_by_token or len(output.token_ids) < 2:
            return [output]
        last = len(output.token_ids) - 1
        return [
            msgspec.structs.replace(
                output,
                token_ids=[token_id],
                finish_reason=output.finish_reason if i == last else None,
                logprobs=output.logprobs[i : i + 1],
            )
            for i, token_id in enumerate(output.token_ids)
        ]

    def _replay(self, output: TokenOutput, prompt_logprobs: Sequence[TokenLogprobs]) -> list[Piece]:
        """The given ids one by one, as most of them were first reported, up to the id that ends the answer, if any."""
        given, pieces = self.request.given_ids, list[Piece]()
        scores = prompt_logprobs[len(self.request.prompt_ids) - 1 :]
        for i, token_id in enumerate(given):
            is_end = i == len(given) - 1 and not output.token_ids
            one = TokenOutput(
                token_ids=[token_id],
                finish_reason=output.finish_reason if is_end else None,
                logprobs=tuple(scores[i : i + 1]),
            )
            pieces.append(replace(self._take(one, prompt_logprobs, is_first=not pieces), is_given=True))
            if self.finish_reason is not None:
                break
        return pieces

    def _take(self, output: TokenOutput, prompt_logprobs: Sequence[TokenLogprobs], *, is_first: bool) -> Piece:
        opening, scored = self._open(prompt_logprobs) if is_first else ("", [])
        num_taken, text = self._read(output)
        self.num_completion += num_taken
        self._tokens.discard(len(output.token_ids) - num_taken)
        reason = "stop" if self._stop.matched is not None else output.finish_reason
        if reason is not None:
            text += self._stop.flush()
        thought, num_thought_chars = self._thoughts.take()
        found: list[Part | Thought] = [Thought(thought)] if thought else []
        found += self._calls.add(text, opening, is_last=reason is not None)
        if self._calls.is_over:
            reason = reason or "stop"
        scored += self._scored.take(num_thought_chars + len(text), is_last=reason is not None)
        self.finish_reason = "tool_calls" if reason == "stop" and self._calls.are_whole else reason
        if self.finish_reason is not None:
            self._tokens.close()
        return Piece(
            index=self.index,
            token_ids=output.token_ids[:num_taken],
            parts=found,
            scored=scored,
            finish_reason=self.finish_reason,
        )

    def _open(self, prompt_logprobs: Sequence[TokenLogprobs]) -> tuple[str, list[ScoredToken]]:
        """The echo, and the scored tokens of an echoed prompt."""
        if self._echo is None or self._is_chat:
            return self._echo or "", []
        offsets, num_chars = [], 0
        for token_id in self.request.prompt_ids:
            offsets.append(num_chars)
            num_chars += len(self._detokenizer.add([token_id]))
        if not self._wants_logprobs:
            return self._echo, []
        num_scored, num_top = len(self.request.prompt_ids) - 1, self.request.sampling.num_logprobs or 0
        found = [TokenLogprobs(each.logprob, each.top[:num_top]) for each in prompt_logprobs[:num_scored]]
        return self._echo, score_prompt(self.request.prompt_ids, found, offsets)

    def _read(self, output: TokenOutput) -> tuple[int, str]:
        """How many of the ids count, and the text that became certain.

        Reads token by token, so that tokens after a stop string do not count, however the outputs were merged.
        """
        # The id that ended the answer counts, but either has no text or is not searched for stop strings.
        num_silent = 1 if output.finish_reason == "stop" else 0
        num_visible = len(output.token_ids) - num_silent
        texts = []
        for i, token_id in enumerate(output.token_ids[:num_visible]):
            text = self._detokenizer.add([token_id])
            if self._wants_logprobs:
                self._scored.add(token_id, output.logprobs[i], text)
            texts.append(self._find_stop(self._thoughts.add(text), self.num_completion + i + 1))
            if self._stop.matched is not None:
                return i + 1, "".join(texts)
        end = self._detokenizer.add(output.token_ids[-1:]) if num_silent and self._includes_stop else ""
        if num_silent and self._wants_logprobs:
            self._scored.add(output.token_ids[-1], output.logprobs[-1], end)
        if output.finish_reason is not None:
            rest = self._thoughts.flush(self._detokenizer.flush())
            texts += [self._stop.add(rest), self._stop.flush(), end]
        return len(output.token_ids), "".join(texts)

    def _find_stop(self, text: str, num_tokens: int) -> str:
        """Like the ids that end an answer, stop strings count only after min_tokens."""
        return text if num_tokens <= self.request.sampling.min_tokens else self._stop.add(text)
