"""The GPU's sampling on the stand-in chooses what the CPU path chooses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import kernels.sampling.draw_kernel
import kernels.sampling.floor_kernel
import kernels.sampling.kernel
import kernels.sampling.logprobs_kernel
from kernels.sampling import logprobs, sample
from kernels.sampling.reference import choose as reference
from kernels.sampling.step import IN_PROMPT, StepParameters, Wanted, choose, score
from tests.kernels.accuracy import generator, with_gaps
from tests.kernels.hopper import Hopper, on_hopper
from tests.kernels.memory_watch import MemoryFault
from tests.kernels.planting import planted

VOCAB = 1037


def _parameters(n: int, *, vocab: int = VOCAB, seed: int = 0) -> StepParameters:
    """Nothing is cut, biased, penalised or forbidden; every row is drawn at temperature 1."""
    words = -(-vocab // 32)
    return StepParameters(
        temperature=torch.ones(n),
        top_k=torch.zeros(n, dtype=torch.int32),
        top_p=torch.ones(n),
        min_p=torch.zeros(n),
        uniform=torch.rand(n, dtype=torch.float64, generator=generator(seed)),
        presence=torch.zeros(n),
        frequency=torch.zeros(n),
        repetition=torch.ones(n),
        slots=torch.full((n,), -1, dtype=torch.int32),
        counts=torch.zeros(n + 2, vocab, dtype=torch.int32),
        bias_starts=torch.zeros(n, dtype=torch.int32),
        bias_ends=torch.zeros(n, dtype=torch.int32),
        bias_ids=torch.zeros(4 * n, dtype=torch.int32),
        bias_values=torch.zeros(4 * n),
        masks=torch.full((n,), -1, dtype=torch.int32),
        allowed=torch.full((n, words), -1, dtype=torch.int32),
    )


def _logits(n: int, *, vocab: int = VOCAB, seed: int = 1) -> Tensor:
    return 3 * torch.randn(n, vocab, generator=generator(seed))


def _of_the_cpu(logits: Tensor, p: StepParameters) -> Tensor:
    return sample(logits, p.temperature, p.top_k.long(), p.top_p, p.min_p, p.uniform).int()


@pytest.mark.parametrize("vocab", [VOCAB, 64, 5000])
def test_a_uniform_draws_the_cpus_token(hopper: Hopper, vocab: int) -> None:
    n = 24
    mixed = replace(
        _parameters(n, vocab=vocab),
        temperature=torch.tensor([0.3, 0.7, 1.0, 1.7]).repeat(6),
        top_k=torch.tensor([0, 1, 5, 40, 0, vocab], dtype=torch.int32).repeat(4),
        top_p=torch.tensor([1.0, 0.9, 0.5, 0.01, 1.0, 0.99, 0.9, 1.0]).repeat(3),
        min_p=torch.tensor([0.0, 0.0, 0.1]).repeat(8),
    )
    logits = _logits(n, vocab=vocab)
    assert choose(logits, mixed).tolist() == _of_the_cpu(logits, mixed).tolist()


def test_ties_are_kept_together(hopper: Hopper) -> None:
    """Of equal weights at a cut all are kept, as on the CPU."""
    n = 32
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 1.0, -3.0] + [float("-inf")] * 58).expand(n, -1).contiguous()
    p = replace(_parameters(n, vocab=64), top_k=torch.tensor([2, 0], dtype=torch.int32).repeat(n // 2))
    p = replace(p, top_p=torch.tensor([1.0, 0.6]).repeat(n // 2))
    drawn = choose(logits, p)
    assert drawn.tolist() == _of_the_cpu(logits, p).tolist()
    assert set(drawn.tolist()) == {0, 1, 2, 3, 4}


def test_the_ends_of_a_uniform_are_tokens_that_can_be(hopper: Hopper) -> None:
    logits = torch.full((2, 70), float("-inf"))
    logits[:, [3, 66]] = 0.0
    p = replace(_parameters(2, vocab=70), uniform=torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64))
    assert choose(logits, p).tolist() == [3, 66]


def test_low_temperatures_take_the_first_of_the_likeliest(hopper: Hopper) -> None:
    logits = with_gaps(_logits(3).half(), gap=16)
    logits[0, [900, 17]] = 50.0
    p = replace(_parameters(3), temperature=torch.tensor([0.0, 1e-6, 0.0]))
    assert choose(logits, p).tolist() == [17, *logits[1:].max(dim=1).indices.tolist()]


def test_rows_that_are_no_numbers_are_told(hopper: Hopper) -> None:
    logits = _logits(5)
    logits[0, 3], logits[1, VOCAB - 1], logits[2] = float("nan"), float("inf"), float("-inf")
    p = replace(_parameters(5), temperature=torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]))
    p = replace(p, slots=torch.arange(5, dtype=torch.int32))
    chosen = choose(logits, p)
    assert chosen[:3].tolist() == [-1, -1, -1] and (chosen[3:] >= 0).all()
    assert p.counts.sum(dim=1).tolist() == [0, 0, 0, 1, 1, 0, 0]


def _penalised(n: int) -> StepParameters:
    p = replace(
        _parameters(n),
        presence=torch.tensor([0.0, 0.5, 2.0, -1.0])[:n],
        frequency=torch.tensor([0.0, 0.3, -0.5, 1.0])[:n],
        repetition=torch.tensor([1.0, 1.3, 0.7, 2.0])[:n],
        slots=torch.tensor([5, 1, -1, 0], dtype=torch.int32)[:n],
        bias_starts=torch.tensor([0, 2, 2, 5], dtype=torch.int32)[:n],
        bias_ends=torch.tensor([2, 2, 5, 6], dtype=torch.int32)[:n],
        masks=torch.tensor([-1, 3, -1, 1], dtype=torch.int32)[:n],
    )
    p.counts.copy_(torch.randint(0, 3, p.counts.shape, generator=generator(5)) * (torch.arange(VOCAB) % 3 == 0))
    p.counts[:, ::5] |= IN_PROMPT
    p.bias_ids[:6] = torch.tensor([3, 1036, 1, 2, 3, 700])
    p.bias_values[:6] = torch.tensor([float("-inf"), 2.0, 100.0, -5.0, float("-inf"), 9.0])
    p.allowed[3, :] = 0x5555_5555
    p.allowed[1, 4:] = 0
    return p


@pytest.mark.parametrize("temperature", [0.0, 1.0, 8.0])
def test_penalties_biases_and_what_is_allowed_are_those_of_the_cpu(hopper: Hopper, temperature: float) -> None:
    logits = _logits(4)
    ours, theirs = (replace(_penalised(4), temperature=torch.full((4,), temperature)) for _ in range(2))
    for uniform in (0.1, 0.5, 0.9):
        for p in (ours, theirs):
            p.uniform.fill_(uniform)
        assert choose(logits, ours).tolist() == reference(logits, theirs).tolist()
        assert torch.equal(ours.counts, theirs.counts)


def test_a_row_draws_the_same_in_any_batch(hopper: Hopper) -> None:
    logits, p = _logits(4), replace(_penalised(4), top_p=torch.full((4,), 0.9))
    together = choose(logits, replace(p, counts=p.counts.clone()))
    for i in range(4):
        own = {
            name: getattr(p, name)[i : i + 1].contiguous()
            for name in ("temperature", "top_k", "top_p", "min_p", "uniform", "presence", "frequency", "repetition")
        }
        alone = replace(
            p,
            **own,
            slots=p.slots[i : i + 1],
            bias_starts=p.bias_starts[i : i + 1],
            bias_ends=p.bias_ends[i : i + 1],
            masks=p.masks[i : i + 1],
            counts=p.counts.clone(),
        )
        assert choose(logits[i : i + 1], alone).item() == together[i].item()


@pytest.mark.parametrize(
    ("module", "right", "wrong", "found"),
    [
        ("", "mask = at < vocab", "mask = at <= vocab", "outside|both write"),
        ("", "place = out + row * vocab", "place = out + (row + 1) % 4 * vocab", None),
        ("draw", "ids + row, chosen", "ids + row // 2, chosen", "both write"),
        ("draw", "slot * vocab + chosen", "0 * slot + chosen * 0", "both write|reads what"),
        ("draw", "firsts + row * tiles + tile,", "firsts + tile,", "both write"),
        ("draw", "tl.sum(sums, 0) * uniform", "tl.sum(sums, 0) * (1 - uniform)", None),
        ("draw", "tile < chosen, sums", "tile <= chosen, sums", None),
        ("floor", "(its_number < most)", "(its_number <= most)", None),
        ("floor", "likely + row * vocab + place", "likely + place", "both write"),
        ("floor", "tl.store(floors + row, floor)", "tl.store(floors + row, -floor)", None),
    ],
)
def test_faults_planted_into_sampling_are_found(
    hopper: Hopper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    right: str,
    wrong: str,
    found: str | None,
) -> None:
    """None: by another token."""
    whole = kernels.sampling.kernel
    of = {"": whole, "draw": kernels.sampling.draw_kernel, "floor": kernels.sampling.floor_kernel}[module]
    logits, p = _logits(4), replace(_penalised(4), top_k=torch.full((4,), 2, dtype=torch.int32))

    def chosen(choose: Callable[[Tensor, StepParameters], Tensor]) -> list[int]:
        found = []
        for uniform in torch.linspace(0.05, 0.95, 3).tolist():
            p.uniform.fill_(uniform)
            found += choose(logits, replace(p, counts=p.counts.clone())).tolist()
        return found

    rightly = chosen(choose)
    faulty = planted(of, tmp_path, right, wrong)
    if of is not whole:
        for name in ("peaks", "keep", "pick", "count", "collect", "find_floor"):
            monkeypatch.setattr(whole, name, getattr(faulty, name, getattr(whole, name)))
    if found:
        with pytest.raises(MemoryFault, match=found):
            (faulty if of is whole else whole).choose(logits, p)
    else:
        assert chosen((faulty if of is whole else whole).choose) != rightly


def _wanted(nums: Tensor, *, asked: tuple[int, ...] | None = None, ids: Tensor | None = None) -> Wanted:
    places = torch.full_like(nums, -1) if asked is None else torch.tensor(asked).int()
    asked_ids = torch.zeros((1, 1), dtype=torch.int32) if ids is None else ids.int()
    return Wanted(nums, places, asked_ids, torch.full(asked_ids.shape, float("nan")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_of_ids_that_are_asked_for(hopper: Hopper, dtype: torch.dtype) -> None:
    """More than a block of them, none, and beside rows that want the likeliest or nothing."""
    logits = with_gaps(_logits(4, vocab=5000).to(dtype), gap=24)
    ids, nums = torch.tensor([4999, 3, 8, 17]).int(), torch.tensor([200, 3, -1, 0]).int()
    of_first = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:200]
    asked_ids = torch.zeros(3, 256)
    asked_ids[2, :200] = of_first
    wanted = _wanted(nums, asked=(2, -1, -1, 0), ids=asked_ids)
    own, top, _ = score(logits, ids, wanted, most=20)
    every = logits.float().log_softmax(dim=-1)
    assert torch.allclose(wanted.asked_logprobs[2, :200], every[0, of_first], atol=1e-5)
    assert wanted.asked_logprobs[2, 200:].isnan().all() and wanted.asked_logprobs[:2].isnan().all()
    assert torch.allclose(own[[0, 1, 3]], every[[0, 1, 3], ids[[0, 1, 3]].long()], atol=1e-5)
    assert torch.allclose(top[1, :3], every[1].topk(3).values, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_are_those_of_the_cpu(hopper: Hopper, dtype: torch.dtype) -> None:
    logits = with_gaps(_logits(5, vocab=5000).to(dtype), gap=24)
    logits[3, [17, 4999]] = 20.0
    ids, num_tops = torch.tensor([4999, 3, -1, 17, 8]).int(), torch.tensor([20, -1, 5, 3, 0]).int()
    own, top, top_ids = score(logits, ids, _wanted(num_tops), most=20)
    true_own, true_top, _ = logprobs(logits.float(), ids.long().clamp(min=0), num_top=20)
    assert torch.allclose(own[[0, 3, 4]], true_own[[0, 3, 4]], atol=1e-5)
    for row, count in ((0, 20), (3, 3)):
        assert torch.allclose(top[row, :count], true_top[row, :count], atol=1e-5)
        found = logits[row].float().sort(descending=True, stable=True).indices[:count]
        assert top_ids[row, :count].tolist() == found.tolist()
    alone = score(logits[:1], ids[:1], _wanted(num_tops[:1]), most=20)
    assert torch.equal(alone[0], own[:1]) and torch.equal(alone[1], top[:1]) and torch.equal(alone[2], top_ids[:1])


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("mask=at < vocab", "mask=at <= vocab", "outside"),
        ("own + row,", "own + row // 2,", "both write"),
        ("top + row * MOST", "top + row", "both write"),
        ("& (at > last_at)", "& (at >= last_at)", None),
        ("tl.exp(value - peak)", "tl.exp(value)", None),
        ("value - level, mask=at < wanted", "value - level", "outside"),
        ("place_asked + at, value - level", "place_asked + wanted - 1 - at, value - level", None),
    ],
)
def test_faults_planted_into_log_probabilities_are_found(
    hopper: Hopper, tmp_path: Path, right: str, wrong: str, found: str | None
) -> None:
    faulty = planted(kernels.sampling.logprobs_kernel, tmp_path, right, wrong)
    logits = _logits(3)
    logits[:, 5] = logits[:, 9] = 90.0
    logits[2, 7] = 95.0
    ids, nums = torch.tensor([4, 3, 1]).int(), torch.tensor([4, 4, 4]).int()
    wanted = _wanted(nums, asked=(-1, -1, 0), ids=torch.tensor([[7, 5, 9, 2]]))
    if found:
        with pytest.raises(MemoryFault, match=found):
            faulty.score(logits, ids, wanted, most=4)
        return
    theirs_asked = replace(wanted, asked_logprobs=wanted.asked_logprobs.clone())
    ours = (*score(logits, ids, wanted, most=4), wanted.asked_logprobs)
    theirs = (*faulty.score(logits, ids, theirs_asked, most=4), theirs_asked.asked_logprobs)
    # What nobody wants is NaN.
    ours, theirs = (tuple(each.nan_to_num(7.0) for each in found) for found in (ours, theirs))
    assert not all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_parameters_that_do_not_fit_are_refused(hopper: Hopper) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        choose(_logits(3), _parameters(2))


@pytest.mark.parametrize("vocab", [32_000, 128_256, 262_144])
def test_the_vocabularies_of_real_models_compile_well(vocab: int) -> None:
    with on_hopper(interprets=False) as hopper:
        choose(torch.zeros(2, vocab, dtype=torch.bfloat16), _parameters(2, vocab=vocab))
        assert all(cubin.blocks_per_multiprocessor >= 2 for cubin in hopper.launched)
