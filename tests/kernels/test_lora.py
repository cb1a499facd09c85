"""Adapters of a mixed batch, by both paths, against one token at a time in fp64."""

import pytest
import torch

from kernels.lora import LoraStack, add_lora, plan_lora, stack_adapters

TOKEN_SLOTS = [2, -1, 0, 0, 2, -1, 4, 2]


def make_weights(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(5, rank, 24, generator=generator), torch.randn(5, rank, 40, generator=generator)


@pytest.mark.parametrize("rank", [1, 8, 51])
@pytest.mark.parametrize("is_packed", [True, False])
def test_each_token_gets_its_own_delta_and_others_none(rank: int, is_packed: bool) -> None:
    a, b = make_weights(rank)
    stack = stack_adapters(a, b) if is_packed else LoraStack(a, b, None)
    assert (stack.packed is not None) == is_packed
    x, y = torch.randn(8, 24), torch.randn(8, 40)
    truth = torch.stack(
        [
            row.double() + (0 if slot < 0 else (x[i].double() @ a[slot].double().T) @ b[slot].double())
            for i, (row, slot) in enumerate(zip(y, TOKEN_SLOTS, strict=True))
        ]
    )
    before = y.clone()
    segments = plan_lora(TOKEN_SLOTS, num_slots=5)
    assert segments is not None
    add_lora(y, x, stack, segments)
    torch.testing.assert_close(y.double(), truth, atol=1e-4, rtol=1e-5)
    assert torch.equal(y[[1, 5]], before[[1, 5]])


@pytest.mark.parametrize("is_packed", [True, False])
def test_an_adapter_whose_products_overflow_breaks_only_its_own_tokens(is_packed: bool) -> None:
    a, b = make_weights(4)
    a[2] = 3e38
    stack = stack_adapters(a, b) if is_packed else LoraStack(a, b, None)
    segments = plan_lora(TOKEN_SLOTS, num_slots=5)
    assert segments is not None
    y = torch.zeros(8, 40)
    add_lora(y, torch.full((8, 24), 2.0), stack, segments)
    assert y.isfinite().all(dim=1).tolist() == [slot != 2 for slot in TOKEN_SLOTS]


def test_many_ranks_are_gathered_instead_of_packed() -> None:
    a, b = make_weights(52)
    assert stack_adapters(a, b).packed is None


def test_a_batch_without_adapters_has_no_plan() -> None:
    assert plan_lora([-1, -1], num_slots=5) is None


def test_weights_that_do_not_fit_are_refused() -> None:
    a, b = make_weights(4)
    segments = plan_lora([0], num_slots=5)
    assert segments is not None
    with pytest.raises(ValueError, match="do not fit"):
        add_lora(torch.ones(1, 40), torch.ones(1, 23), stack_adapters(a, b), segments)
    with pytest.raises(ValueError, match="differ"):
        stack_adapters(a, b[:4])
