"""The shapes of an adapter's tensors, and whether they fit a base model."""

from dataclasses import dataclass

from protocol.load import AdapterBase

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
PROJECTIONS = (*ATTENTION, *MLP)


@dataclass(frozen=True, slots=True)
class Layout:
    """num_layers: one more than the highest layer's index. shapes: projection -> (out, in), the same in all layers."""

    rank: int
    num_layers: int
    shapes: dict[str, tuple[int, int]]


def misfit(layout: Layout, base: AdapterBase, *, model_id: str) -> str | None:
    """Why the adapter cannot be served over this base model; None if it can."""
    if layout.rank > base.max_rank:
        return f"its rank is {layout.rank}, the workers of {model_id!r} take at most {base.max_rank}"
    if layout.num_layers > base.num_layers:
        return f"it has a tensor for layer {layout.num_layers - 1}, {model_id!r} has {base.num_layers} layers"
    for projection, (out, inner) in layout.shapes.items():
        expected = base.shapes.get(projection)
        if expected is None:
            return f"it adapts {projection}, which {model_id!r} does not have"
        if (out, inner) != tuple(expected):
            return f"it is for a {projection} of {out} x {inner}, that of {model_id!r} is {expected[0]} x {expected[1]}"
    return None
