"""Low-rank adapters of a mixed batch: each token gets the delta of its own adapter, or none.

`plan_lora` says which tokens meet which pages, once per step; `LoraPages` holds a projection's part of all pages.
"""

from collections.abc import Callable

from torch import Tensor

from kernels import gpu
from kernels.lora import native, reference
from kernels.lora.pages import LoraPages, empty_pages
from kernels.lora.plan import MAX_RUN, PAGE_RANKS, LoraPlan, plan_lora
from kernels.lora.tables import LoraTables

__all__ = [
    "MAX_RUN",
    "PAGE_RANKS",
    "LoraPages",
    "LoraPlan",
    "LoraTables",
    "add_lora",
    "empty_pages",
    "plan_lora",
    "project",
]


def add_lora(y: Tensor, x: Tensor, pages: LoraPages, plan: LoraPlan | LoraTables) -> None:
    """y += (x a^T) b of each token's adapter, in place; tokens without one stay as they are.

    y [tokens, out], x [tokens, in], contiguous, of the pages' dtype. A token's delta depends on its x and its adapter
    alone, to the last bit. A GPU's kernels take the plan as tables. Raises ValueError on a mismatch; the numbers in the
    plan are not checked.
    """
    in_size, out_size = pages.a.shape[3], pages.b.shape[2]
    if (
        x.shape != (plan.num_tokens, in_size)
        or y.shape != (plan.num_tokens, out_size)
        or not x.dtype == y.dtype == pages.a.dtype
        or not (x.is_contiguous() and y.is_contiguous())
    ):
        raise ValueError(
            f"add_lora: x {tuple(x.shape)} {x.dtype}, y {tuple(y.shape)} {y.dtype} do not fit {pages.a.dtype} pages of "
            f"{in_size} -> {out_size} and a plan of {plan.num_tokens} tokens"
        )
    if isinstance(plan, LoraTables):
        if gpu.takes("lora", x, y):
            from kernels.lora import kernel

            return kernel.add_lora(y, x, pages, plan)
        assert plan.plan is not None, "a graph is captured with kernels only"
        plan = plan.plan
    if native.can_add(pages):
        native.add_lora(y, x, pages, plan)
    else:
        reference.add_lora(y, x, pages, plan)


def project(product: Callable[[], Tensor], x: Tensor, pages: LoraPages, tables: LoraTables) -> Tensor:
    """product(), a projection of x, with `add_lora`; a GPU's graph computes the two side by side as far as it can."""
    if gpu.takes("lora", x):
        from kernels.lora import kernel

        return kernel.project(product, x, pages, tables)
    y = product()
    add_lora(y, x, pages, tables)
    return y
