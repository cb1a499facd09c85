// Products of bfloat16 by AMX's tiles, on the same panels that the other kernels read: a tile is 16 units of 16 outputs
// of a panel, and its rows are a panel's width apart.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../native/tiles.h"
#include "../native/vectors.h"

#ifdef TIERGATE_TILES

namespace tiergate {

// The number of rows from which tiles pay. A prototype took the same time for 1 to 8 rows, that of reading the weights
// from memory; by AVX-512 each row costs a quarter of that.
constexpr int64_t kMinTiledRows = 4;
// A slice's 128 KiB of half a panel stay near the core while rows pass by.
constexpr int64_t kUnitsPerTiledSlice = 1024;

// Some rows of x. `multiply` configures this thread's tiles for them, and the destructor releases the tiles.
//
// tiles 0 1   sums of 16 rows and 2 x 16 outputs     4   16 rows, 16 units
//       2 3   of the next 16 rows                    5   the next
//                                                    6 7 16 units, 2 x 16 outputs
class TiledRows {
public:
    // x [num_rows, num_units] dense.
    TiledRows(const uint16_t* x, int64_t num_rows, int64_t num_units)
        : x_(reinterpret_cast<const uint32_t*>(x)), num_rows_(num_rows), num_units_(num_units) {
        const int64_t rest = num_units % kUnits;
        if (!rest) return;
        rest_ = scratch<uint32_t, 14>(size_t(num_rows * kUnits));
        for (int64_t row = 0; row < num_rows; ++row)
            fill(x_ + (row + 1) * num_units - rest, rest, rest_ + row * kUnits, kUnits);
    }

    ~TiledRows() { release_tiles(); }
    TiledRows(const TiledRows&) = delete;

    // sums [num_rows][kPanel] = `count` units of x from `unit` on times those of a panel, or += where unit > 0. All
    // slices but the last are whole tiles.
    void multiply(const uint32_t* panel, int64_t unit, int64_t count, float* sums) {
        const uint32_t* rest = panel;
        if (count % kUnits) {
            uint32_t* padded = scratch<uint32_t, 15>(kUnits * kPanel);
            fill(panel + count / kUnits * kUnits * kPanel, count % kUnits * kPanel, padded, kUnits * kPanel);
            rest = padded;
        }
        for (int64_t column = 0; column < kPanel; column += 32)
            for (int64_t row = 0; row < num_rows_; row += 32) {
                shape(std::min(num_rows_ - row, kTileRows), std::clamp<int64_t>(num_rows_ - row - 16, 0, kTileRows));
                float* to = sums + row * kPanel + column;
                if (below_) multiply_block<true>(row, panel + column, unit, count, rest + column, to);
                else multiply_block<false>(row, panel + column, unit, count, rest + column, to);
            }
    }

private:
    static constexpr int64_t kUnits = kTileBytes / 4, kPanelBytes = kPanel * 4;
    static_assert(kPanel % 32 == 0 && kUnitsPerTiledSlice % kUnits == 0);

    static void fill(const uint32_t* from, int64_t count, uint32_t* to, int64_t size) {
        std::fill(std::copy_n(from, count, to), to + size, 0);
    }

    // Configures tiles for `above` rows and `below` rows below them.
    void shape(int64_t above, int64_t below) {
        if (above == above_ && below == below_) return;
        above_ = above;
        below_ = below;
        TileShapes shapes;
        const int64_t rows[kTiles] = {above, above, below, below, above, below, kTileRows, kTileRows};
        for (int i = 0; i < kTiles; ++i) {
            shapes.rows[i] = uint8_t(rows[i]);
            shapes.row_bytes[i] = rows[i] ? kTileBytes : 0;
        }
        configure_tiles(shapes);
    }

    template <bool kHasBelow>
    void multiply_block(int64_t row, const uint32_t* panel, int64_t unit, int64_t count, const uint32_t* rest,
                        float* sums) const {
        if (unit) {
            load_tile<0>(sums, kPanelBytes);
            load_tile<1>(sums + 16, kPanelBytes);
            if constexpr (kHasBelow) {
                load_tile<2>(sums + 16 * kPanel, kPanelBytes);
                load_tile<3>(sums + 16 * kPanel + 16, kPanelBytes);
            }
        } else {
            zero_tile<0>();
            zero_tile<1>();
            if constexpr (kHasBelow) {
                zero_tile<2>();
                zero_tile<3>();
            }
        }
        const uint32_t* x = x_ + row * num_units_ + unit;
        for (int64_t k = 0; k + kUnits <= count; k += kUnits)
            add<kHasBelow>(x + k, num_units_, panel + k * kPanel);
        if (count % kUnits) add<kHasBelow>(rest_ + row * kUnits, kUnits, rest);
        store_tile<0>(sums, kPanelBytes);
        store_tile<1>(sums + 16, kPanelBytes);
        if constexpr (kHasBelow) {
            store_tile<2>(sums + 16 * kPanel, kPanelBytes);
            store_tile<3>(sums + 16 * kPanel + 16, kPanelBytes);
        }
    }

    // The sums += 16 units of rows, which lie `stride` units apart, times those of the panel.
    template <bool kHasBelow>
    [[gnu::always_inline]] static inline void add(const uint32_t* x, int64_t stride, const uint32_t* panel) {
        load_tile<6>(panel, kPanelBytes);
        load_tile<4>(x, stride * 4);
        multiply_tiles<0, 4, 6>();
        load_tile<7>(panel + 16, kPanelBytes);
        multiply_tiles<1, 4, 7>();
        if constexpr (kHasBelow) {
            load_tile<5>(x + 16 * stride, stride * 4);
            multiply_tiles<2, 5, 6>();
            multiply_tiles<3, 5, 7>();
        }
    }

    const uint32_t* x_;
    int64_t num_rows_, num_units_, above_ = -1, below_ = -1;
    uint32_t* rest_ = nullptr;
};

}  // namespace tiergate

#endif
