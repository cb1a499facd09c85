"""Refuses, at submission, requests that could not be served: one clear error each, before anything is queued."""

from collections.abc import Collection, Iterable

from worker.engine.errors import InvalidRequest, PromptTooLong
from worker.engine.request import EngineRequest, SamplingParams

_NUM_CLASSES = 4
MOST_GPU_LOGPROBS = 20
"""The most log-probabilities per token that a GPU's step reports."""
MOST_GPU_ASKED = 1024
"""The most ids whose log-probabilities a request may ask for; the API takes no more."""


def check_request(
    request: EngineRequest, *, vocab_size: int, max_model_len: int, eos_token_ids: Collection[int] = ()
) -> None:
    """Raises InvalidRequest or PromptTooLong."""
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt:
        raise InvalidRequest("the prompt has no tokens", param="prompt")
    _check_ids(prompt, vocab_size, param="prompt")
    _check_ids(request.given_ids, vocab_size, param="continue_from")
    _check_ids(sampling.logit_bias, vocab_size, param="logit_bias")
    _check_ids(sampling.stop_token_ids, vocab_size, param="stop_token_ids")
    _check_ids(sampling.logprob_token_ids, vocab_size, param="logprob_token_ids")
    _check_allowed(sampling, vocab_size, eos_token_ids)
    if sampling.max_tokens < 0:
        raise InvalidRequest("max_tokens must not be negative", param="max_tokens")
    if len(request.given_ids) > sampling.max_tokens:
        raise InvalidRequest(
            f"{len(request.given_ids)} ids exceed max_tokens {sampling.max_tokens}", param="continue_from"
        )
    if sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            f"min_tokens {sampling.min_tokens} exceeds max_tokens {sampling.max_tokens}", param="min_tokens"
        )
    if not 0 <= request.priority < _NUM_CLASSES:
        raise InvalidRequest(f"priority must be 0 to {_NUM_CLASSES - 1}, got {request.priority}", param="priority")
    if request.weight <= 0:
        raise InvalidRequest(f"weight must be positive, got {request.weight}", param="weight")
    num_output = sampling.max_tokens if request.pooling is None else 0
    if len(prompt) + num_output > max_model_len:
        raise PromptTooLong(len(prompt), num_output, max_model_len)


def check_for_gpu(request: EngineRequest) -> None:
    """Raises InvalidRequest for log-probabilities that a GPU's step does not report."""
    sampling = request.sampling
    limits = {
        "top_logprobs": (0 if sampling.logprob_token_ids else sampling.num_logprobs or 0, MOST_GPU_LOGPROBS),
        "logprob_token_ids": (len(sampling.logprob_token_ids), MOST_GPU_ASKED),
    }
    for field, (wanted, most) in limits.items():
        if wanted > most:
            raise InvalidRequest(f"{field}: a worker on a GPU tells at most {most} a token", param=field)


def _check_allowed(sampling: SamplingParams, vocab_size: int, eos_token_ids: Collection[int]) -> None:
    """Some token must be left to choose, and, while min_tokens forbids the end, one that does not end the answer."""
    if sampling.allowed_token_ids is None:
        return
    _check_ids(sampling.allowed_token_ids, vocab_size, param="allowed_token_ids")
    left = set(sampling.allowed_token_ids) - {word[0] for word in sampling.bad_words if len(word) == 1}
    if not left:
        raise InvalidRequest("bad_words leave nothing of allowed_token_ids", param="bad_words")
    if sampling.min_tokens and left <= {*eos_token_ids, *sampling.stop_token_ids}:
        raise InvalidRequest("allowed_token_ids has only ends, which min_tokens forbids", param="allowed_token_ids")


def _check_ids(ids: Iterable[int], vocab_size: int, *, param: str) -> None:
    ids = list(ids)
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        bad = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidRequest(f"{param}: token id {bad} is outside the vocabulary of {vocab_size}", param=param)
