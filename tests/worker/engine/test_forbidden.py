"""What an answer may not go on with, and what a worker on a GPU does not tell."""

from array import array
from typing import Any

import numpy as np
import pytest

from worker.engine.admission import check_for_gpu
from worker.engine.errors import InvalidRequest
from worker.engine.forbidden import allowed_words, forbidden_ids
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.sequence import Sequence

WORDS = ((7,), (1, 2), (2, 2, 3))


def after(answer: list[int], *, prompt: list[int], **fields: object) -> set[int]:
    sampling = SamplingParams(bad_words=WORDS, **fields)  # type: ignore[arg-type]
    request = EngineRequest(request_id="r", prompt_ids=prompt, sampling=sampling)
    return set(forbidden_ids(Sequence("r", request, prompt + answer, len(prompt), b"", 0.0)))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([], {7}),
        ([1], {7, 2}),
        ([2, 1], {7, 2}),
        ([1, 2], {7}),
        ([2, 2], {7, 3}),
        ([2, 2, 2], {7, 3}),
        ([2, 2, 3], {7}),
    ],
)
def test_a_word_loses_its_last_token_where_the_answer_has_the_others(answer: list[int], expected: set[int]) -> None:
    assert after(answer, prompt=[9, 9]) == expected
    # What stands in the prompt begins no word.
    assert after(answer, prompt=[1]) == after(answer, prompt=[2, 2]) == expected


def test_something_is_left_of_what_is_allowed() -> None:
    assert after([1], prompt=[9], allowed_token_ids=array("q", [2])) == set()
    assert after([1], prompt=[9], allowed_token_ids=array("q", [2, 3])) == {7, 2}


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (SamplingParams(num_logprobs=0, logprob_token_ids=tuple(range(1025))), "logprob_token_ids"),
        (SamplingParams(num_logprobs=21), "top_logprobs"),
    ],
)
def test_what_a_gpus_step_cannot_tell_is_refused(sampling: SamplingParams, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_for_gpu(EngineRequest(request_id="r", prompt_ids=[1], sampling=sampling))
    assert caught.value.param == param
    for num, ids in ((20, ()), (0, tuple(range(1024))), (30, (1, 2))):
        served = SamplingParams(num_logprobs=num, logprob_token_ids=ids)
        check_for_gpu(EngineRequest(request_id="r", prompt_ids=[1], sampling=served))


@pytest.mark.parametrize("vocab_size", [64, 70])
def test_the_words_of_a_mask_tell_what_is_allowed(vocab_size: int) -> None:
    def allowed(forbidden: list[int], **fields: Any) -> list[int]:
        request = EngineRequest(request_id="r", prompt_ids=[1], sampling=SamplingParams(**fields))
        words = allowed_words(Sequence("r", request, [1], 1, b"", 0.0), forbidden, vocab_size)
        assert words.dtype == np.int32 and len(words) == -(-vocab_size // 32)
        return [i for i in range(vocab_size) if words[i // 32] >> (i % 32) & 1]

    assert allowed([]) == list(range(vocab_size))
    assert allowed([0, 63]) == list(range(1, 63)) + list(range(64, vocab_size))
    assert allowed([5], allowed_token_ids=array("q", [31, 5, 32, 63])) == [31, 32, 63]
