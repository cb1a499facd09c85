// y = x weight^T + bias. A weight is packed in panels of kPanel outputs: [panels][units of the input][kPanel].
#pragma once

#include <algorithm>
#include <type_traits>

#include "../native/pool.h"
#include "../native/vectors.h"
#include "tiled.h"

namespace tiergate {

// Runs of panels per thread: few, so that weights stream without a break; several, so that threads end together.
constexpr int64_t kRunsPerThread = 3;

// weight [out_size, in_size] -> packed, outputs beyond out_size zero. in_size must be whole units.
template <class Type>
void pack_weight(const typename Type::Element* weight, int64_t out_size, int64_t in_size, uint32_t* packed,
                 int64_t num_threads) {
    const int64_t num_units = in_size / Type::kPerUnit;
    const auto* rows = reinterpret_cast<const uint32_t*>(weight);
    parallel_for(num_threads, (out_size + kPanel - 1) / kPanel, [&](int64_t panel) {
        for (int64_t i = 0; i < kPanel; i += 16)
            for (int64_t unit = 0; unit < num_units; unit += 16) {
                const uint32_t* from[16];
                for (int64_t k = 0; k < 16; ++k) {
                    const int64_t row = panel * kPanel + i + k;
                    from[k] = row < out_size ? rows + row * num_units + unit : nullptr;
                }
                transpose(from, num_units - unit, packed + (panel * num_units + unit) * kPanel + i, kPanel);
            }
    });
}

// Rows as the left side of products: in place, or converted and a little further apart than their length, since rows a
// power of two apart would share the places in the nearest cache.
template <class Type>
struct LeftRows {
    using Number = typename Type::Left;

    LeftRows(const typename Type::Element* x, int64_t num_rows, int64_t size) {
        if constexpr (std::is_same_v<Number, typename Type::Element>) {
            numbers = x;
            stride = size;
        } else {
            stride = (size + 15) / 16 * 16 + 16;
            Number* to = scratch<Number, 8>(size_t(num_rows * stride));
            for (int64_t row = 0; row < num_rows; ++row) to_left<Type>(x + row * size, size, to + row * stride);
            numbers = to;
        }
    }

    const Number* numbers;
    int64_t stride;
};

template <class Type>
struct Product {
    using Element = typename Type::Element;

    // x [num_rows, in_size] dense; y [num_rows, out_size] dense; bias [out_size] or null.
    const Element* x;
    const uint32_t* packed;
    const Element* bias;
    Element* y;
    int64_t num_rows, out_size, in_size;
    // A row's bits must be the same among any number of rows. Tiles sum in another order than vectors do, so bfloat16
    // then uses tiles, where there are any, for every number of rows.
    bool is_deterministic;

    void run(int64_t num_threads) const {
        const int64_t num_panels = (out_size + kPanel - 1) / kPanel;
        const int64_t num_blocks = (num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
        const int64_t num_runs = std::min(num_panels, num_threads * kRunsPerThread);
        parallel_for(num_threads, num_blocks * num_runs, [&](int64_t chunk) {
            const int64_t first = chunk / num_runs * kRowsPerBlock, run = chunk % num_runs;
            compute(first, std::min(kRowsPerBlock, num_rows - first), run * num_panels / num_runs,
                    (run + 1) * num_panels / num_runs);
        });
    }

private:
    void compute(int64_t first, int64_t height, int64_t panel, int64_t end) const {
        const int64_t num_units = in_size / Type::kPerUnit;
#ifdef TIERGATE_TILES
        if constexpr (std::is_same_v<Type, BFloat16>)
            if (is_deterministic || num_rows >= kMinTiledRows) return compute_tiled(first, height, panel, end);
#endif
        const LeftRows<Type> rows(x + first * in_size, height, in_size);
        const uint32_t* last = packed + (end * num_units - kUnitsPerSlice) * kPanel;
        float* sums = scratch<float, 0>(size_t(height * kPanel));
        for (; panel < end; ++panel) {
            for (int64_t unit = 0; unit < num_units; unit += kUnitsPerSlice) {
                const int64_t count = std::min(kUnitsPerSlice, num_units - unit);
                const uint32_t* slice = packed + (panel * num_units + unit) * kPanel;
                const uint32_t* next = slice + count * kPanel;
                multiply_rows<Type, kPanel / 16>(rows.numbers + unit * Type::kPerUnit, rows.stride, slice, count, sums,
                                                 kPanel, height, unit > 0, next <= last ? next : nullptr);
            }
            finish(sums, first, height, panel * kPanel);
        }
    }

#ifdef TIERGATE_TILES
    void compute_tiled(int64_t first, int64_t height, int64_t panel, int64_t end) const {
        const int64_t num_units = in_size / Type::kPerUnit;
        TiledRows rows(x + first * in_size, height, num_units);
        float* sums = scratch<float, 0>(size_t(height * kPanel));
        for (; panel < end; ++panel) {
            for (int64_t unit = 0; unit < num_units; unit += kUnitsPerTiledSlice)
                rows.multiply(packed + (panel * num_units + unit) * kPanel, unit,
                              std::min(kUnitsPerTiledSlice, num_units - unit), sums);
            finish(sums, first, height, panel * kPanel);
        }
    }
#endif

    void finish(const float* sums, int64_t first, int64_t height, int64_t column) const {
        for (int64_t row = 0; row < height; ++row)
            for (int64_t i = 0; i < kPanel && column + i < out_size; i += 16) {
                const int64_t count = out_size - column - i;
                const Lanes shift = bias ? Type::load(bias + column + i, count) : splat(0.f);
                Type::store(y + (first + row) * out_size + column + i, count,
                            load_floats(sums + row * kPanel + i) + shift);
            }
    }
};

template <class Type>
void linear(const typename Type::Element* x, const uint32_t* packed, const typename Type::Element* bias,
            typename Type::Element* y, int64_t num_rows, int64_t out_size, int64_t in_size, bool is_deterministic,
            int64_t num_threads) {
    Product<Type>{x, packed, bias, y, num_rows, out_size, in_size, is_deterministic}.run(num_threads);
}

}  // namespace tiergate
