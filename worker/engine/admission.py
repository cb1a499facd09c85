"""Refusing at submission what could not be served: one clear error each, before anything is queued."""

from collections.abc import Iterable

from worker.engine.errors import InvalidRequest, PromptTooLong
from worker.engine.request import EngineRequest

_NUM_CLASSES = 4


def check_request(request: EngineRequest, *, vocab_size: int, max_model_len: int) -> None:
    """Raises InvalidRequest or PromptTooLong."""
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt:
        raise InvalidRequest("the prompt has no tokens", param="prompt")
    _check_ids(prompt, vocab_size, param="prompt")
    _check_ids(request.given_ids, vocab_size, param="continue_from")
    _check_ids(sampling.logit_bias, vocab_size, param="logit_bias")
    _check_ids(sampling.stop_token_ids, vocab_size, param="stop_token_ids")
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


def _check_ids(ids: Iterable[int], vocab_size: int, *, param: str) -> None:
    ids = list(ids)
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        bad = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidRequest(f"{param}: token id {bad} is outside the vocabulary of {vocab_size}", param=param)
