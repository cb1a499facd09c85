"""Sampling against definitions written out, and against the distribution it claims to draw from."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from kernels.sampling import greedy, logprobs, penalize, reference, sample

Sample = Callable[..., Tensor]
PATHS = {"chosen": sample, "torch": reference.sample}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def sample_by(request: pytest.FixtureRequest) -> Sample:
    """By the path that this machine chooses, and by torch's, which others have."""
    path: Sample = request.param
    return path


def draw(
    sample: Sample,
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    n: int = 4000,
) -> Tensor:
    """Ids at n evenly spread uniform numbers: their frequencies are the distribution, up to 1 / n."""
    rows = logits.expand(n, -1).contiguous()
    return sample(
        rows,
        temperature=torch.full((n,), temperature),
        top_k=torch.full((n,), top_k),
        top_p=torch.full((n,), top_p),
        min_p=torch.full((n,), min_p),
        uniform=(torch.arange(n, dtype=torch.float64) + 0.5) / n,
    )


def frequencies(ids: Tensor, size: int) -> Tensor:
    return torch.bincount(ids, minlength=size) / len(ids)


LOGITS = torch.tensor([1.0, 3.0, -1.0, 2.0, 0.5])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_draws_follow_the_softmax(sample_by: Sample, temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, -1)
    torch.testing.assert_close(
        frequencies(draw(sample_by, LOGITS, temperature=temperature), 5), expected, atol=1e-3, rtol=0
    )


def test_top_k_keeps_the_k_likeliest(sample_by: Sample) -> None:
    assert set(draw(sample_by, LOGITS, top_k=2).tolist()) == {1, 3}
    assert set(draw(sample_by, LOGITS, top_k=99).tolist()) == {0, 1, 2, 3, 4}


def test_tokens_as_likely_as_the_last_kept_are_kept_too(sample_by: Sample) -> None:
    assert set(draw(sample_by, torch.tensor([2.0, 1.0, 1.0, 0.0]), top_k=2).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("size", [300, 1000])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.1), (0, 0.9), (0, 0.999), (10, 1.0), (280, 1.0), (290, 0.95)])
def test_the_cut_is_where_a_whole_sort_puts_it(sample_by: Sample, size: int, top_k: int, top_p: float) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(size))
    ordered, ids = torch.softmax(logits, -1).sort(descending=True)
    kept = ordered[: top_k or size].double()
    num_kept = int((kept.cumsum(0) - kept < top_p * kept.sum()).sum())
    drawn = draw(sample_by, logits, top_k=top_k, top_p=top_p, n=200_000 // size)
    assert set(drawn.tolist()) <= set(ids[:num_kept].tolist())
    low = draw(sample_by, logits, temperature=20.0, top_k=num_kept, n=4000)
    assert set(low.tolist()) == set(ids[:num_kept].tolist())


def test_top_p_keeps_the_smallest_set_that_reaches_it(sample_by: Sample) -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for top_p, kept in ((0.01, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (1.0, 4)):
        assert set(draw(sample_by, logits, top_p=top_p).tolist()) == set(range(kept))
    expected = torch.tensor([0.5, 0.3, 0, 0]) / 0.8
    torch.testing.assert_close(frequencies(draw(sample_by, logits, top_p=0.6), 4), expected, atol=1e-3, rtol=0)


def test_min_p_drops_what_is_far_less_likely_than_the_best(sample_by: Sample) -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draw(sample_by, logits, min_p=0.25).tolist()) == {0, 1, 2}


def test_a_row_with_its_own_parameters_does_not_touch_its_neighbours(sample_by: Sample) -> None:
    logits = torch.randn(3, 50)
    uniform = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    arguments = (
        torch.tensor([0.5, 1.0, 1.5]),
        torch.tensor([0, 3, 0]),
        torch.tensor([1.0, 1.0, 0.4]),
        torch.tensor([0.1, 0.0, 0.0]),
        uniform,
    )
    together = sample_by(logits, *arguments)
    for i in range(3):
        assert sample_by(logits[i : i + 1], *(argument[i : i + 1] for argument in arguments)) == together[i]


@given(st.integers(0, 2**32), st.floats(0, 1, exclude_max=True), st.floats(0.01, 1), st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_only_possible_tokens_are_drawn(seed: int, uniform: float, top_p: float, top_k: int) -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(seed)) * 30
    logits[0, seed % 40] = float("-inf")
    for path in PATHS.values():
        drawn = path(
            logits,
            torch.tensor([1.0]),
            torch.tensor([top_k]),
            torch.tensor([top_p]),
            torch.tensor([0.0]),
            torch.tensor([uniform], dtype=torch.float64),
        )
        assert torch.softmax(logits, -1)[0, drawn] > 0


@pytest.mark.parametrize("vocab", [1, 63, 300, 32_000])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_this_machines_path_draws_what_torchs_does(vocab: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    n = 400
    logits = torch.randn(n, vocab, generator=generator) * spread
    logits[:, ::7] = float("-inf") if vocab > 1 else 0.0
    parameters = (
        torch.rand(n, generator=generator) + 0.5,
        torch.randint(0, 2 * vocab, (n,), generator=generator) * torch.randint(0, 2, (n,), generator=generator),
        1 - torch.rand(n, generator=generator) * torch.randint(0, 2, (n,), generator=generator),
        torch.rand(n, generator=generator) * torch.randint(0, 2, (n,), generator=generator),
        torch.rand(n, generator=generator, dtype=torch.float64),
    )
    # Where a number falls near a border the two may round to either side of it.
    assert (sample(logits, *parameters) == reference.sample(logits, *parameters)).double().mean() >= 0.99


def test_greedy_takes_the_first_of_equals_and_shows_nan() -> None:
    values, ids = greedy(torch.tensor([[1.0, 5.0, 5.0], [float("nan"), 2.0, 1.0]]))
    assert ids[0] == 1 and values[0] == 5
    assert values[1].isnan()


def test_penalties_are_those_of_openai_and_hugging_face() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 3.0], [2.0, -2.0, 1.0, 3.0]])
    rows, ids, counts = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 3]), torch.tensor([3, 0, 1, 2])
    presence, frequency = torch.tensor([0.5, 0.5, 0.5, -1.0]), torch.tensor([0.25, 0.25, 0.25, 0.0])
    repetition = torch.tensor([2.0, 2.0, 2.0, 1.0])
    penalize(logits, rows, ids, counts, presence, frequency, repetition)
    assert logits[0].tolist() == [1.0 - 0.75 - 0.5, -4.0, 0.5 - 0.25 - 0.5, 3.0]
    assert logits[1].tolist() == [2.0, -2.0, 1.0, 4.0]


@pytest.mark.parametrize("vocab", [5, 64, 65, 1000])
def test_a_draw_inverts_the_cumulative_distribution(sample_by: Sample, vocab: int) -> None:
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    cumulative = torch.softmax(logits.double(), -1).cumsum(0)
    uniform = (torch.arange(3000, dtype=torch.float64) + 0.5) / 3000
    is_clear = (cumulative[None] - uniform[:, None]).abs().amin(dim=1) > 1e-6
    expected = torch.searchsorted(cumulative, uniform, right=True)
    assert (draw(sample_by, logits, n=3000) == expected)[is_clear].all()
    assert is_clear.sum() > 2500


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (5, 0.9, 0.0), (0, 0.5, 0.0), (0, 1.0, 0.5)])
def test_a_row_that_is_not_a_number_does_no_harm(sample_by: Sample, top_k: int, top_p: float, min_p: float) -> None:
    good = torch.randn(200, generator=torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[7] = float("nan")

    def pick(rows: Tensor) -> Tensor:
        n = len(rows)
        uniform = torch.full((n,), 0.7, dtype=torch.float64)
        return sample_by(
            rows, torch.ones(n), torch.full((n,), top_k), torch.full((n,), top_p), torch.full((n,), min_p), uniform
        )

    assert pick(torch.stack([bad, good]))[1] == pick(good[None])[0]
    assert 0 <= pick(bad[None]) < 200


def test_logprobs_are_those_of_the_log_softmax() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1)) * 5
    ids = torch.tensor([0, 299, 17, 5])
    expected = torch.log_softmax(logits.double(), -1)
    own, top, top_ids = logprobs(logits, ids, num_top=6)
    torch.testing.assert_close(own.double(), expected[torch.arange(4), ids], atol=1e-5, rtol=0)
    torch.testing.assert_close(top.double(), expected.sort(descending=True).values[:, :6], atol=1e-5, rtol=0)
    torch.testing.assert_close(top.double(), expected.gather(1, top_ids), atol=1e-5, rtol=0)
    assert logprobs(logits, ids, num_top=0)[1].shape == (4, 0)


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(5, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.1), (20, 0.8, 0.05)])
def test_the_truncations_are_those_of_transformers(sample_by: Sample, top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(100, generator=torch.Generator().manual_seed(top_k)) * 2
    scores = TemperatureLogitsWarper(0.7)(None, logits[None])
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    scores = MinPLogitsWarper(min_p)(None, TopPLogitsWarper(top_p)(None, scores))
    drawn = frequencies(draw(sample_by, logits, temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p, n=8000), 100)
    torch.testing.assert_close(drawn, torch.softmax(scores[0], -1), atol=5e-4, rtol=0)


def test_the_end_of_the_cumulative_distribution_is_its_last_possible_token(sample_by: Sample) -> None:
    logits = torch.randn(50, 200, generator=torch.Generator().manual_seed(2))
    logits[:, 150:] = float("-inf")
    ones = torch.ones(50)
    almost_one = torch.full((50,), 1 - 2.0**-53, dtype=torch.float64)
    drawn = sample_by(logits, ones, torch.zeros(50, dtype=torch.int64), ones, ones * 0, almost_one)
    assert (drawn == 149).all()


def test_parameters_that_do_not_fit_the_rows_are_refused() -> None:
    logits, ones = torch.randn(2, 5), torch.ones(2)
    fitting = [ones, torch.zeros(2, dtype=torch.int64), ones, ones * 0, ones.double() / 2]
    assert sample(logits, *fitting).shape == (2,)
    for i in range(5):
        for wrong in (fitting[i][:1], fitting[i].to(torch.int32), fitting[i].repeat_interleave(2)[::2]):
            with pytest.raises(ValueError, match="sample: "):
                sample(logits, *fitting[:i], wrong, *fitting[i + 1 :])
