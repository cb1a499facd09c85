"""What all passes of a draw share: the weights of a row's tokens, 1 for the likeliest, and whether they are needed."""

import triton
import triton.language as tl

_GREEDY_BELOW = tl.constexpr(1e-5)


@triton.jit
def peak_of(highest, row, tiles, TILES: tl.constexpr):
    """A row's largest logit; NaN if a tile of it holds NaN or +inf."""
    at = tl.arange(0, TILES)
    each = tl.load(highest + row * tiles + at, mask=at < tiles, other=float("-inf"))
    is_sound = tl.min((each == each).to(tl.int32), 0) > 0
    return tl.where(is_sound, tl.max(each, 0), float("nan"))


@triton.jit
def is_drawn(peak, heat):
    """Whether the row's token is drawn, not simply the likeliest one, or none for a row without one."""
    return (peak > float("-inf")) & (heat >= _GREEDY_BELOW)


@triton.jit
def weights_at(logits, at, end, peak, factor):
    """0 from `end` on."""
    return tl.exp((tl.load(logits + at, mask=at < end, other=float("-inf")) - peak) * factor)
