// y += (x a^T) b of each token's adapter, by the work list of plan.py and the pages of pages.py.
//
// A token's sums run over the input, over the rank columns of a page and over the pages of its adapter in their order,
// whatever else is in the batch: its bits depend on its row and its adapter alone.
#pragma once

#include <algorithm>

#include "../native/pool.h"
#include "../native/vectors.h"

namespace tiergate {

constexpr int64_t kPageRanks = 16, kMaxSlices = 3;

// Outputs that a thread takes at once.
constexpr int64_t kLoraColumns = 512;

// The structs are mirrored, field for field, in native.py; the items are those of plan.py.
struct ShrinkItem {
    int32_t page, first, num_rows, place;
};
struct ExpandItem {
    int32_t first_page, num_pages, first, num_rows;
};

// A LoraPlan; no items if no token has an adapter.
struct LoraWork {
    const int32_t *rows, *pages;
    const ShrinkItem* shrink;
    const ExpandItem* expand;
    int64_t num_rows, num_shrink, num_expand, num_places;
};

// A LoraPages; a is null where there is none.
struct LoraMatrix {
    const void *a, *b;
    const int32_t* ranks;
    int64_t num_slices, offsets[kMaxSlices + 1];
};

template <class Type>
struct LoraProduct {
    using Element = typename Type::Element;

    // x [tokens, in_size] and y [tokens, out_size] dense; shrunk: room for `shrunk_size` numbers.
    const LoraWork& work;
    const LoraMatrix& pages;
    const Element* x;
    Element* y;
    int64_t in_size, out_size;
    float* shrunk;

    static int64_t shrunk_size(const LoraWork& work, int64_t num_slices) {
        return work.num_rows * num_slices * work.num_places * kPageRanks;
    }

    void run(int64_t num_threads) const {
        parallel_for(num_threads, work.num_shrink * pages.num_slices, [&](int64_t i) {
            shrink(work.shrink[i / pages.num_slices], i % pages.num_slices);
        });
        const int64_t num_tiles = tile_of(pages.num_slices).tile;
        parallel_for(num_threads, work.num_expand * num_tiles, [&](int64_t i) {
            expand(work.expand[i / num_tiles], i % num_tiles);
        });
    }

private:
    struct Tile {
        int64_t slice, tile;
    };

    int64_t rank(int64_t page, int64_t slice) const { return pages.ranks[page * pages.num_slices + slice]; }

    // Where a slice's columns of a row begin among the shrunk numbers.
    float* shrunk_at(int64_t row, int64_t slice, int64_t place) const {
        return shrunk + ((row * pages.num_slices + slice) * work.num_places + place) * kPageRanks;
    }

    // A slice's first tile, counted over all slices.
    Tile tile_of(int64_t slice) const {
        int64_t tile = 0;
        for (int64_t s = 0; s < slice; ++s)
            tile += (pages.offsets[s + 1] - pages.offsets[s] + kLoraColumns - 1) / kLoraColumns;
        return {slice, tile};
    }

    void shrink(const ShrinkItem& item, int64_t slice) const {
        const Element* a = static_cast<const Element*>(pages.a) +
                           (item.page * pages.num_slices + slice) * kPageRanks * in_size;
        const int64_t num_ranks = rank(item.page, slice);
        for (int64_t first = 0; first < num_ranks; first += kRanksAtOnce)
            for (int64_t row = 0; row < item.num_rows; row += kShrinkRows) {
                const int64_t at = item.first + row;
                const int64_t count = std::min(num_ranks - first, kRanksAtOnce);
                const Element* from = a + first * in_size;
                switch (std::min(item.num_rows - row, kShrinkRows)) {
                    case 1: multiply<1>(at, from, count, shrunk_at(at, slice, item.place) + first); break;
                    case 2: multiply<2>(at, from, count, shrunk_at(at, slice, item.place) + first); break;
                    default: multiply<kShrinkRows>(at, from, count, shrunk_at(at, slice, item.place) + first);
                }
            }
    }

    // R rows' products with `num_ranks` rows of a, written to `to`; the next row's are a row of shrunk numbers further.
    template <int64_t R>
    void multiply(int64_t at, const Element* a, int64_t num_ranks, float* to) const {
        constexpr int64_t kUnits = 16 * Type::kPerUnit;
        const Element* rows[R];
        const Element* columns[kRanksAtOnce];
        for (int64_t r = 0; r < R; ++r) rows[r] = x + work.rows[at + r] * in_size;
        // Columns beyond the last repeat it, and their sums are ignored.
        for (int64_t i = 0; i < kRanksAtOnce; ++i) columns[i] = a + std::min(i, num_ranks - 1) * in_size;
        Lanes sums[R][kRanksAtOnce];
        for (int64_t r = 0; r < R; ++r)
            for (int64_t i = 0; i < kRanksAtOnce; ++i) sums[r][i] = splat(0.f);
        for (int64_t k = 0; k < in_size; k += kUnits) {
            const int64_t count = std::min((in_size - k) / Type::kPerUnit, int64_t(16));
            Units left[R];
#pragma GCC unroll 8
            for (int64_t r = 0; r < R; ++r) left[r] = load_units(rows[r] + k, count);
#pragma GCC unroll 8
            for (int64_t i = 0; i < kRanksAtOnce; ++i) {
                const Units right = load_units(columns[i] + k, count);
#pragma GCC unroll 8
                for (int64_t r = 0; r < R; ++r) sums[r][i] = Type::multiply_add(sums[r][i], left[r], right);
            }
        }
        for (int64_t r = 0; r < R; ++r)
            for (int64_t i = 0; i < num_ranks; ++i)
                to[r * pages.num_slices * work.num_places * kPageRanks + i] = sum_of(sums[r][i]);
    }

    void expand(const ExpandItem& item, int64_t tile) const {
        int64_t slice = pages.num_slices - 1;
        while (tile_of(slice).tile > tile) --slice;
        const int64_t begin = pages.offsets[slice] + (tile - tile_of(slice).tile) * kLoraColumns;
        const int64_t size = std::min(kLoraColumns, pages.offsets[slice + 1] - begin);
        for (int64_t row = 0; row < item.num_rows; row += kExpandRows)
            expand_rows(item, item.first + row, std::min(kExpandRows, item.num_rows - row), slice, begin, size);
    }

    void expand_rows(const ExpandItem& item, int64_t at, int64_t num_rows, int64_t slice, int64_t begin,
                     int64_t size) const {
        float* sums = scratch<float, 12>(size_t(kExpandRows * kLoraColumns));
        bool is_empty = true;
        for (int64_t place = 0; place < item.num_pages; ++place) {
            const int64_t page = work.pages[item.first_page + place], num_ranks = rank(page, slice);
            const Element* b = static_cast<const Element*>(pages.b) + page * kPageRanks * out_size + begin;
            const float* left = shrunk_at(at, slice, place);
            for (int64_t i = 0; i < num_ranks; is_empty = false) {
                const Element* from = b + i * out_size;
                if (num_ranks - i >= kRanksAtOnce) {
                    add_ranks<kRanksAtOnce>(left + i, from, sums, num_rows, size, is_empty);
                    i += kRanksAtOnce;
                } else {
                    add_ranks<1>(left + i, from, sums, num_rows, size, is_empty);
                    i += 1;
                }
            }
        }
        if (is_empty) return;
        for (int64_t row = 0; row < num_rows; ++row) {
            Element* to = y + work.rows[at + row] * out_size + begin;
            for (int64_t i = 0; i < size; i += 16)
                Type::store(to + i, size - i, Type::load(to + i, size - i) + load_floats(sums + row * kLoraColumns + i));
        }
    }

    // sums[row][column] += the products of N ranks, one after the other; if is_first, the sums begin at zero.
    template <int64_t N>
    void add_ranks(const float* left, const Element* b, float* sums, int64_t num_rows, int64_t size,
                   bool is_first) const {
        const int64_t stride = pages.num_slices * work.num_places * kPageRanks;
        for (int64_t column = 0; column < size; column += 16) {
            Lanes right[N];
#pragma GCC unroll 8
            for (int64_t i = 0; i < N; ++i) right[i] = Type::load(b + i * out_size + column, size - column);
            for (int64_t row = 0; row < num_rows; ++row) {
                float* to = sums + row * kLoraColumns + column;
                Lanes sum = is_first ? splat(0.f) : load_floats(to);
#pragma GCC unroll 8
                for (int64_t i = 0; i < N; ++i) sum = fused(splat(left[row * stride + i]), right[i], sum);
                store_floats(to, sum);
            }
        }
    }
};

template <class Type>
void add_lora(const LoraWork& work, const LoraMatrix& pages, const typename Type::Element* x,
              typename Type::Element* y, int64_t in_size, int64_t out_size, int64_t num_threads) {
    if (!work.num_expand || !pages.a) return;
    float* shrunk = scratch<float, 13>(size_t(LoraProduct<Type>::shrunk_size(work, pages.num_slices)));
    LoraProduct<Type>{work, pages, x, y, in_size, out_size, shrunk}.run(num_threads);
}

}  // namespace tiergate
