"""Log-probabilities on the GPU: one program per row, which ends at once if its row wants none."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import LAUNCH

if TYPE_CHECKING:
    from kernels.sampling.step import Wanted

_TILE, _ASKED = 4096, 128


@triton.jit
def _score(
    logits, ids, num_tops, asked, asked_ids, asked_logprobs, own, top, top_ids, stride, stride_asked, vocab,
    MOST: tl.constexpr, TILE: tl.constexpr, ASKED: tl.constexpr,
):  # fmt: skip
    """Finds the likeliest tokens one after the other: each is the largest of those that rank after the last one."""
    row = tl.program_id(0).to(tl.int64)
    wanted, chosen = tl.load(num_tops + row), tl.load(ids + row)
    if (wanted >= 0) & (chosen >= 0):
        logits += row * stride
        peak = tl.full([], float("-inf"), tl.float32)
        for first in range(0, vocab, TILE):
            at = first + tl.arange(0, TILE)
            value = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
            peak = tl.maximum(peak, tl.max(value, 0))
        mass = tl.zeros([TILE], tl.float32)
        for first in range(0, vocab, TILE):
            at = first + tl.arange(0, TILE)
            value = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
            mass += tl.exp(value - peak)
        level = peak + tl.log(tl.sum(mass, 0))
        tl.store(own + row, tl.load(logits + chosen).to(tl.float32) - level)
        last, last_at = tl.full([], float("inf"), tl.float32), tl.full([], -1, tl.int32)
        place_asked = tl.load(asked + row).to(tl.int64) * stride_asked
        if place_asked >= 0:
            for first in range(0, wanted, ASKED):
                at = first + tl.arange(0, ASKED)
                token = tl.load(asked_ids + place_asked + at, mask=at < wanted, other=0)
                value = tl.load(logits + token, mask=at < wanted, other=0.0).to(tl.float32)
                tl.store(asked_logprobs + place_asked + at, value - level, mask=at < wanted)
            wanted = 0
        for place in range(0, wanted):
            best, best_at = tl.full([], float("-inf"), tl.float32), tl.full([], 0, tl.int32)
            for first in range(0, vocab, TILE):
                at = first + tl.arange(0, TILE)
                value = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
                value = tl.where((value < last) | ((value == last) & (at > last_at)), value, float("-inf"))
                largest = tl.max(value, 0)
                its_first = tl.min(tl.where(value == largest, at, vocab), 0)
                best_at, best = tl.where(largest > best, its_first, best_at), tl.maximum(largest, best)
            tl.store(top + row * MOST + place, best - level)
            tl.store(top_ids + row * MOST + place, best_at)
            last, last_at = best, best_at


def score(logits: Tensor, ids: Tensor, wanted: "Wanted", *, most: int) -> tuple[Tensor, Tensor, Tensor]:
    n, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"score: no kernel for logits with strides {logits.stride()}")
    own = torch.empty(n, dtype=torch.float32, device=logits.device)
    top = torch.empty((n, most), dtype=torch.float32, device=logits.device)
    top_ids = torch.empty((n, most), dtype=torch.int32, device=logits.device)
    if n:
        _score[(n,)](
            logits, ids, wanted.nums, wanted.asked, wanted.asked_ids, wanted.asked_logprobs, own, top, top_ids,
            logits.stride(0), wanted.asked_ids.stride(0), vocab, most, _TILE, _ASKED, num_warps=8, **LAUNCH,
        )  # fmt: skip
    return own, top, top_ids
