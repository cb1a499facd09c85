"""How one answer grows: by a sampled token and those that its grammar then forces, until there is a reason to end."""

from collections.abc import Container

from protocol.responses import FinishReason
from worker.engine.errors import InvalidRequest
from worker.engine.request import EngineRequest, SamplingParams, TokenOutput
from worker.engine.sampler import has_penalty
from worker.engine.sequence import Sequence
from worker.guided.grammar import Matcher


def start_matcher(request: EngineRequest) -> Matcher | None:
    """Raises InvalidRequest if the ids that the answer already has do not follow its grammar."""
    if request.grammar is None:
        return None
    try:
        return request.grammar.start(request.given_ids)
    except ValueError as error:
        raise InvalidRequest(f"the ids do not follow the grammar: {error}", param="continue_from") from error


def append(sequence: Sequence, token_id: int, eos_token_ids: Container[int]) -> tuple[list[int], FinishReason | None]:
    """Append a sampled token and those that its grammar forces then. Returns them, and the reason to end, if any."""
    token_ids, waiting = list[int](), [token_id]
    reason = None
    while waiting and reason is None:
        sequence.token_ids.append(waiting.pop(0))
        token_ids.append(sequence.token_ids[-1])
        reason = finish_reason(sequence, eos_token_ids)
        if len(token_ids) == 1 and sequence.matcher is not None:
            sequence.matcher.accept(token_id)
            if reason is None and _may_jump(sequence.request.sampling):
                waiting = sequence.matcher.force()
    return token_ids, reason


def finish_reason(sequence: Sequence, eos_token_ids: Container[int]) -> FinishReason | None:
    """Why the answer is over, if it is."""
    sampling, last = sequence.request.sampling, sequence.token_ids[-1]
    ends_at_eos = not sampling.ignore_eos or sequence.matcher is not None
    is_end = last in sampling.stop_token_ids or (last in eos_token_ids and ends_at_eos)
    if is_end and sequence.num_output:
        return "stop"
    return "length" if sequence.num_output >= sampling.max_tokens else None


def make_output(
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


def _may_jump(sampling: SamplingParams) -> bool:
    """Whether unsampled tokens may be appended: not if log-probabilities, token limits or penalties need each step."""
    is_free = sampling.allowed_token_ids is None and not sampling.bad_words
    return sampling.num_logprobs is None and is_free and not has_penalty(sampling)
