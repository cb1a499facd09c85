"""What is asked for of the next token, against transformers' processors and OpenAI's definition."""

from collections import Counter
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessorList, MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor
from transformers.generation.logits_process import SequenceBiasLogitsProcessor

from worker.engine.history import TokenHistory
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.sampler import Sampler
from worker.engine.sequence import Sequence

VOCAB, EOS = 64, (2, 0)
PROMPT, ANSWER = [5, 9, 9, 33, 7], [9, 12, 12, 12, 50]


def make_sequence(**sampling: Any) -> Sequence:
    request = EngineRequest(
        request_id="r", prompt_ids=PROMPT, sampling=SamplingParams(**({"temperature": 0.0} | sampling))
    )
    return Sequence(request.request_id, request, PROMPT + ANSWER, len(PROMPT), b"", 0.0)


def adjusted(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """One row as transformers and OpenAI's documentation have it."""
    scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(torch.tensor([PROMPT + ANSWER]), logits[None])[
        0
    ]
    for token_id, count in Counter(ANSWER).items():
        scores[token_id] -= params.frequency_penalty * count + params.presence_penalty
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[i], bias] for i, bias in params.logit_bias.items()]))
    if params.min_tokens:
        ends = [*EOS, *params.stop_token_ids]
        processors.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), params.min_tokens, ends, device="cpu"))
    return processors(torch.tensor([PROMPT + ANSWER]), scores[None])[0]


def test_each_row_is_adjusted_by_its_own_request_alone() -> None:
    sequences = [
        make_sequence(),
        make_sequence(repetition_penalty=1.3),
        make_sequence(presence_penalty=0.7, frequency_penalty=-0.4, repetition_penalty=0.8),
        make_sequence(logit_bias={3: 50.0, 9: -100.0}),
        make_sequence(min_tokens=6, stop_token_ids=(12, 40)),
        make_sequence(min_tokens=5, stop_token_ids=(12, 40)),
        make_sequence(presence_penalty=2.0, logit_bias={9: 1.5, 12: 2.5}, min_tokens=9, num_logprobs=4),
    ]
    logits = torch.randn(len(sequences), VOCAB, generator=torch.Generator().manual_seed(0)) * 4
    expected = [adjusted(row.clone(), each.request.sampling) for row, each in zip(logits, sequences, strict=True)]
    chosen = Sampler(VOCAB, EOS).choose(logits, sequences)
    torch.testing.assert_close(logits, torch.stack(expected))
    assert [each and each.token_id for each in chosen] == [int(row.argmax()) for row in expected]


def test_a_row_beside_others_draws_what_it_draws_alone() -> None:
    sequences = [
        make_sequence(temperature=1.0, seed=i, top_k=i % 3 * 5, top_p=1.0 - i % 2 * 0.3, frequency_penalty=i % 4 / 2)
        for i in range(24)
    ]
    logits = torch.randn(len(sequences), VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    sampler = Sampler(VOCAB, EOS)
    alone = [sampler.choose(logits[i : i + 1].clone(), [each]) for i, each in enumerate(sequences)]
    assert sampler.choose(logits.clone(), sequences) == [chosen for (chosen,) in alone]


def test_a_row_that_is_not_finite_fails_alone() -> None:
    logits = torch.randn(3, VOCAB)
    logits[1, 5] = float("nan")
    chosen = Sampler(VOCAB, EOS).choose(logits, [make_sequence(temperature=1.0, num_logprobs=2) for _ in range(3)])
    assert [each is None for each in chosen] == [False, True, False]


@given(st.lists(st.integers(0, 9)), st.lists(st.lists(st.integers(0, 9))))
def test_a_history_that_grows_counts_what_was_generated(prompt: list[int], steps: list[list[int]]) -> None:
    history, token_ids = TokenHistory(prompt), list(prompt)
    for step in steps:
        token_ids += step
        history.catch_up(token_ids)
    answer = Counter(token_ids[len(prompt) :])
    assert dict(zip(history.ids, history.counts, strict=True)) == {i: answer[i] for i in token_ids}
    assert len(set(history.ids)) == len(history.ids)
