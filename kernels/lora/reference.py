"""The truth: both halves item by item, in float32, in products whose rows do not depend on each other."""

import torch
from torch import Tensor

from kernels.linear.reference import linear_by_tiles
from kernels.lora.pages import LoraPages
from kernels.lora.plan import PAGE_RANKS, Expand, LoraPlan, Shrink


def add_lora(y: Tensor, x: Tensor, pages: LoraPages, plan: LoraPlan) -> None:
    """y += (x a^T) b of each token's adapter, in place; tokens without one stay as they are.

    y [tokens, out]; x [tokens, in]. Touches only those numbers between the halves that plan and ranks name.
    """
    shape = (len(plan.rows), pages.num_slices, plan.num_places * PAGE_RANKS)
    shrunk = torch.full(shape, torch.nan, device=x.device)
    rows = plan.rows.to(device=x.device, dtype=torch.int64)
    for item in map(Shrink._make, plan.shrink.tolist()):
        part, left = (
            slice(item.first, item.first + item.num_rows),
            x[rows[item.first : item.first + item.num_rows]].float(),
        )
        for s, rank in enumerate(pages.ranks[item.page].tolist()):
            column = item.place * PAGE_RANKS
            shrunk[part, s, column : column + rank] = linear_by_tiles(left, pages.a[item.page, s, :rank].float())
    for run in map(Expand._make, plan.expand.tolist()):
        part = slice(run.first, run.first + run.num_rows)
        for s in range(pages.num_slices):
            outputs = slice(*pages.offsets[s : s + 2])
            delta = torch.zeros(run.num_rows, outputs.stop - outputs.start, device=x.device)
            for place, page in enumerate(plan.pages[run.first_page : run.first_page + run.num_pages].tolist()):
                rank, column = int(pages.ranks[page, s]), place * PAGE_RANKS
                left = shrunk[part, s, column : column + rank]
                delta += linear_by_tiles(left, pages.b[page, :rank, outputs].float().T)
            y[rows[part], outputs] = (y[rows[part], outputs].float() + delta).to(y.dtype)
