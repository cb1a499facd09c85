"""The GPU path: both halves walk the work list with a fixed grid, so that one launch serves any mix of adapters."""

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import gpu
from kernels.lora.pages import LoraPages
from kernels.lora.plan import PAGE_RANKS
from kernels.lora.tables import GPU_RUN, LoraTables

_MAX_CHUNKS, _K_TILE, _N_TILE = 8, 128, 256
_SHRINKS_EACH, _EXPANDS_EACH = 4, 4
"""Blocks of each kernel that a multiprocessor runs at a time."""


@triton.jit(do_not_specialize=["most_rows"])
def _shrink(
    x, a, ranks, rows, items, counts, shrunk, stride_x, most_rows, width, K,
    SLICES: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, K_TILE: tl.constexpr, TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
):  # fmt: skip
    """shrunk [chunks of K, most_rows, SLICES, width] fp32: the products of a run's tokens for each chunk of K, page
    after page. The columns of a product are all slices' ranks of one page, so that they share one read of x."""
    chunks = tl.cdiv(K, CHUNK)
    for work in range(tl.program_id(0), tl.load(counts) * chunks, tl.num_programs(0)):
        item, chunk = items + work // chunks * 4, work % chunks
        page, first = tl.load(item).to(tl.int64), tl.load(item + 1)
        num_rows, place = tl.load(item + 2), tl.load(item + 3)
        at, column = tl.arange(0, TOKENS), tl.arange(0, COLUMNS)
        is_row, part = at < num_rows, column // RANKS
        token = tl.load(rows + first + at, mask=is_row, other=0).to(tl.int64)
        rank = tl.load(ranks + page * SLICES + part, mask=part < SLICES, other=0)
        is_column = column % RANKS < rank
        of_a = a + ((page * SLICES * RANKS + column) * K)[None, :]
        acc = tl.zeros([TOKENS, COLUMNS], tl.float32)
        for begin in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, K), K_TILE):
            k = begin + tl.arange(0, K_TILE)
            left = tl.load(x + token[:, None] * stride_x + k[None, :], is_row[:, None] & (k < K)[None, :], other=0.0)
            right = tl.load(of_a + k[:, None], mask=is_column[None, :] & (k < K)[:, None], other=0.0)
            acc = tl.dot(left, right, acc, input_precision="ieee")
        to_row = ((chunk * most_rows + first + at).to(tl.int64) * SLICES)[:, None] + part[None, :]
        to = shrunk + to_row * width + (place * RANKS + column % RANKS)[None, :]
        tl.store(to, acc, mask=is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["most_rows"])
def _expand(
    shrunk, b, ranks, rows, pages, items, counts, y, stride_y, most_rows, width, N, second, third,
    SLICES: tl.constexpr, CHUNKS: tl.constexpr, N_TILE: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """second, third: the first outputs of the second and third slice, N if there is none. A tile lies in one slice."""
    tiles_1 = tl.cdiv(second, N_TILE)
    tiles_2 = tiles_1 + tl.cdiv(third - second, N_TILE)
    tiles = tiles_2 + tl.cdiv(N - third, N_TILE)
    for work in range(tl.program_id(0), tl.load(counts + 1) * tiles, tl.num_programs(0)):
        item, tile = items + work // tiles * 4, work % tiles
        first_page, num_pages = tl.load(item), tl.load(item + 1)
        first, num_rows = tl.load(item + 2), tl.load(item + 3)
        part = (tile >= tiles_1).to(tl.int32) + (tile >= tiles_2).to(tl.int32)
        begin = tl.where(part == 0, tile, tl.where(part == 1, tile - tiles_1, tile - tiles_2)) * N_TILE
        begin += tl.where(part == 0, 0, tl.where(part == 1, second, third))
        end = tl.where(part == 0, second, tl.where(part == 1, third, N))
        at, column, row = tl.arange(0, TOKENS), begin + tl.arange(0, N_TILE), tl.arange(0, RANKS)
        is_row, is_column = (at < num_rows)[:, None], (column < end)[None, :]
        acc = tl.zeros([TOKENS, N_TILE], tl.float32)
        for place in range(0, num_pages):
            page = tl.load(pages + first_page + place).to(tl.int64)
            is_rank = row < tl.load(ranks + page * SLICES + part)
            left = tl.zeros([TOKENS, RANKS], tl.float32)
            # Summed in this order, whichever program computed which chunk.
            for chunk in tl.static_range(CHUNKS):
                of_row = ((chunk * most_rows + first + at).to(tl.int64) * SLICES + part)[:, None] * width
                of_rank = shrunk + of_row + (place * RANKS + row)[None, :]
                left += tl.load(of_rank, mask=is_row & is_rank[None, :], other=0.0)
            of_b = b + ((page * RANKS + row) * N)[:, None] + column[None, :]
            right = tl.load(of_b, mask=is_rank[:, None] & is_column, other=0.0)
            acc = tl.dot(left.to(right.dtype), right, acc, input_precision="ieee")
        token = tl.load(rows + first + at, mask=at < num_rows, other=0).to(tl.int64)
        to = y + token[:, None] * stride_y + column[None, :]
        value = tl.load(to, mask=is_row & is_column, other=0.0).to(tl.float32) + acc
        tl.store(to, value.to(y.dtype.element_ty), mask=is_row & is_column)


def add_lora(y: Tensor, x: Tensor, pages: LoraPages, tables: LoraTables) -> None:
    """As `kernels.lora.add_lora`."""
    expand(y, shrink(x, pages, tables), pages, tables)


def project(product: Callable[[], Tensor], x: Tensor, pages: LoraPages, tables: LoraTables) -> Tensor:
    """As `kernels.lora.project`. In a graph the first half is a branch of its own beside the product; launched one by
    one, the two would gain less than a second stream costs the CPU."""
    if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        y = product()
        add_lora(y, x, pages, tables)
        return y
    stream, beside = torch.cuda.current_stream(), _second_stream()
    beside.wait_stream(stream)
    with torch.cuda.stream(beside):
        shrunk = shrink(x, pages, tables)
    y = product()
    stream.wait_stream(beside)
    expand(y, shrunk, pages, tables)
    return y


@functools.cache
def _second_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def shrink(x: Tensor, pages: LoraPages, tables: LoraTables) -> Tensor:
    """The first half -> [chunks of x's columns, rows, slices, ranks] fp32, for `expand`."""
    num_slices, k = pages.num_slices, pages.a.shape[3]
    if num_slices > 3:
        raise ValueError(f"add_lora: no kernel for {num_slices} slices")
    chunk = max(triton.cdiv(triton.cdiv(k, _MAX_CHUNKS), _K_TILE), 1) * _K_TILE
    width = tables.most_places * PAGE_RANKS
    shape = (triton.cdiv(k, chunk), tables.most_rows, num_slices, width)
    shrunk = torch.empty(shape, dtype=torch.float32, device=x.device)
    _shrink[(gpu.num_multiprocessors() * _SHRINKS_EACH,)](
        x, pages.a, pages.ranks, tables.rows, tables.shrink, tables.counts, shrunk, x.stride(0), tables.most_rows,
        width, k, num_slices, triton.next_power_of_2(num_slices * PAGE_RANKS), chunk, _K_TILE, GPU_RUN, PAGE_RANKS,
        num_warps=4, num_stages=3, **gpu.LAUNCH,
    )  # fmt: skip
    return shrunk


def expand(y: Tensor, shrunk: Tensor, pages: LoraPages, tables: LoraTables) -> None:
    """The second half: adds to y in place."""
    n = pages.b.shape[2]
    bounds = (*pages.offsets[1:-1], n, n)[:2]
    _expand[(gpu.num_multiprocessors() * _EXPANDS_EACH,)](
        shrunk, pages.b, pages.ranks, tables.rows, tables.pages, tables.expand, tables.counts, y, y.stride(0),
        tables.most_rows, shrunk.shape[3], n, *bounds, pages.num_slices, shrunk.shape[0], _N_TILE, GPU_RUN, PAGE_RANKS,
        num_warps=4, num_stages=2, **gpu.LAUNCH,
    )  # fmt: skip
