"""The pretend graph replays what was recorded and refuses what a device could not do by itself."""

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import LAUNCH
from tests.kernels.hopper import Hopper
from tests.kernels.pretend_graph import CaptureError, PretendGraph


@triton.jit
def _double(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at))


def test_a_replay_computes_anew_from_the_same_memory(hopper: Hopper) -> None:
    table, ids, out = torch.randn(50, 64), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 64)

    def forward() -> None:
        rows = table.index_select(0, ids)
        doubled = torch.empty_like(rows)
        _double[(2,)](rows, doubled, 64, **LAUNCH)
        out.copy_(doubled @ torch.eye(64))

    graph = PretendGraph()
    graph.capture(forward)
    for chosen in ([3, 4], [49, 0]):
        ids.copy_(torch.tensor(chosen))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.allclose(out, 2 * table[chosen])


def test_python_numbers_are_frozen() -> None:
    scale, out = [1.0], torch.zeros(4)
    graph = PretendGraph()
    graph.capture(lambda: out.fill_(scale[0]))
    scale[0] = 5.0
    graph.replay()
    assert out.tolist() == [1.0] * 4


def test_memory_read_before_this_replay_wrote_it_is_poisoned() -> None:
    out = torch.zeros(4)
    kept: list[Tensor] = []

    def forward() -> None:
        if not kept:
            kept.append(torch.empty(4))
        out.copy_(kept[0])
        kept[0].fill_(1.0)

    graph = PretendGraph()
    graph.capture(forward)
    graph.replay()
    assert out.isnan().all()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: bool(x[0] > 0),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.add_(torch.tensor([1.0, 2.0])),
        lambda x: x.cpu(),
        lambda x: torch.equal(x, x),
    ],
    ids=["item", "tolist", "bool", "mask", "nonzero", "host tensor", "cpu", "equal"],
)
def test_what_waits_for_the_device_fails_the_capture(read: Callable[[Tensor], object]) -> None:
    x = torch.randn(2)
    with pytest.raises(CaptureError, match="graph"):
        PretendGraph().capture(lambda: read(x))
    assert x.tolist()
