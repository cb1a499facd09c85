"""A step's work list on the GPU, with the sizes that its launches are made for."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.lora.plan import LoraPlan

GPU_RUN = 16
"""The most tokens of an item on a GPU: the fewest rows that tensor cores multiply."""


@dataclass(frozen=True, slots=True)
class LoraTables:
    """The tensors of a `LoraPlan` made with max_run GPU_RUN, on the GPU; counts [2] int32: its shrink and expand items.

    Tables may be longer than needed: a replayed graph walks as many items as `counts` says. most_rows, most_places:
    upper bounds of the plan's rows and num_places, for the room between the halves. plan: the same on the CPU, for
    torch's path; None if a graph is captured.
    """

    rows: Tensor
    pages: Tensor
    shrink: Tensor
    expand: Tensor
    counts: Tensor
    most_rows: int
    most_places: int
    num_tokens: int
    plan: LoraPlan | None


def put_plan(plan: LoraPlan, device: torch.device | str) -> LoraTables:
    """The tables of one step, as large as its plan."""
    counts = torch.tensor([len(plan.shrink), len(plan.expand)], dtype=torch.int32)
    return LoraTables(
        rows=plan.rows.to(device),
        pages=plan.pages.to(device),
        shrink=plan.shrink.to(device),
        expand=plan.expand.to(device),
        counts=counts.to(device),
        most_rows=len(plan.rows),
        most_places=plan.num_places,
        num_tokens=plan.num_tokens,
        plan=plan,
    )
