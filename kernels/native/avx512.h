// AVX-512 lanes, with its products of bfloat16.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tiergate {

using Lanes = __m512;
using Units = __m512i;
using Mask = __mmask16;

// A weight's panel is as wide as the sums of a row that registers hold.
constexpr int64_t kPanel = 64;
// A panel's slice of this many units (64 KiB) stays near the core while rows pass by; and sums of sums err less.
constexpr int64_t kUnitsPerSlice = 256;
constexpr int64_t kRowsPerBlock = 192;
// Adapters: rank columns taken at once, rows that shrink and rows that expand with them.
constexpr int64_t kRanksAtOnce = 8, kShrinkRows = 3, kExpandRows = 12;

inline Lanes splat(float value) { return _mm512_set1_ps(value); }
inline Lanes load_floats(const float* from) { return _mm512_loadu_ps(from); }
inline void store_floats(float* to, Lanes value) { _mm512_storeu_ps(to, value); }
inline void store_units(uint32_t* to, Units value) { _mm512_storeu_si512(to, value); }
// a b + c
inline Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
inline Lanes larger(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
inline Lanes nearest(Lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x 2^whole
inline Lanes scale(Lanes x, Lanes whole) { return _mm512_scalef_ps(x, whole); }
inline float sum_of(Lanes x) { return _mm512_reduce_add_ps(x); }
inline float largest_of(Lanes x) { return _mm512_reduce_max_ps(x); }

inline Mask first_lanes(int64_t count) {
    return count >= 16 ? Mask(0xffff) : count <= 0 ? Mask(0) : Mask((1u << count) - 1);
}
inline Mask lanes_between(int64_t begin, int64_t end) { return first_lanes(end) & ~first_lanes(begin); }
inline Lanes select(Mask mask, Lanes chosen, Lanes other) { return _mm512_mask_mov_ps(other, mask, chosen); }

// `count` of 16 units; the others are zero.
inline Units load_units(const void* from, int64_t count) { return _mm512_maskz_loadu_epi32(first_lanes(count), from); }

struct Float32 {
    using Element = float;
    using Left = float;
    static constexpr int64_t kPerUnit = 1;

    static Lanes multiply_add(Lanes sum, Units a, Units b) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
    }
    static Lanes load(const float* from, int64_t count) { return _mm512_maskz_loadu_ps(first_lanes(count), from); }
    static void store(float* to, int64_t count, Lanes value) { _mm512_mask_storeu_ps(to, first_lanes(count), value); }
    static void store_left(float* to, Lanes value) { _mm512_storeu_ps(to, value); }
    static Lanes round(Lanes value) { return value; }
    static Units join(const float* const* rows, int64_t column, int64_t count) {
        return rows[0] ? _mm512_maskz_loadu_epi32(first_lanes(count), rows[0] + column) : _mm512_setzero_si512();
    }
};

struct BFloat16 {
    using Element = uint16_t;
    using Left = uint16_t;
    static constexpr int64_t kPerUnit = 2;

    static Lanes multiply_add(Lanes sum, Units a, Units b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
    static Lanes load(const uint16_t* from, int64_t count) {
        return widen(_mm256_maskz_loadu_epi16(first_lanes(count), from));
    }
    static void store(uint16_t* to, int64_t count, Lanes value) {
        _mm256_mask_storeu_epi16(to, first_lanes(count), (__m256i)_mm512_cvtneps_pbh(value));
    }
    static void store_left(uint16_t* to, Lanes value) { store(to, 16, value); }
    static Lanes round(Lanes value) { return widen((__m256i)_mm512_cvtneps_pbh(value)); }
    static Units join(const uint16_t* const* rows, int64_t column, int64_t count) {
        return _mm512_or_si512(half(rows[0], column, count), _mm512_slli_epi32(half(rows[1], column, count), 16));
    }

private:
    static Units half(const uint16_t* row, int64_t column, int64_t count) {
        if (!row) return _mm512_setzero_si512();
        return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count), row + column));
    }
    static Lanes widen(__m256i value) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(value), 16));
    }
};

inline void transpose(const uint32_t* const* rows, int64_t num_columns, uint32_t* to, int64_t stride) {
    const Mask mask = first_lanes(num_columns);
    Units a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = rows[i] ? _mm512_maskz_loadu_epi32(mask, rows[i]) : _mm512_setzero_si512();
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; ++i) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88);
        a[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
    }
    for (int i = 0; i < num_columns && i < 16; ++i) _mm512_storeu_si512(to + i * stride, a[i]);
}

// sums[r][v] += a's row r times b's columns 16 v and on, over `num_units` units. b's rows are 16 * V units, dense.
// Meanwhile, `kAhead` of every 4 cache lines from `ahead` on are fetched for later.
template <class Type, int R, int V, int kAhead>
[[gnu::always_inline]] inline void multiply(const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t num_units,
                                            const uint32_t* ahead, Lanes (&sums)[R][V]) {
    for (int64_t k = 0; k < num_units; ++k) {
        Units right[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) right[v] = _mm512_loadu_si512(b + (k * V + v) * 16);
#pragma GCC unroll 8
        for (int line = 0; line < kAhead; ++line) _mm_prefetch(ahead + (k * 4 + line) * 16, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Units left = _mm512_set1_epi32(int(a[r * a_stride + k]));
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sums[r][v] = Type::multiply_add(sums[r][v], left, right[v]);
        }
    }
}

// As many rows at once as registers hold: 6 x 4 sums, 4 right sides, one left side.
constexpr int kMaxRows = 6;

// out's rows [num_rows, 16 * V] floats = a b, or += if `adds`; a's rows are a_stride of its numbers apart.
// `ahead`: the next b, or null; it is as large as b, and fetched from memory while the processor multiplies.
template <class Type, int V>
void multiply_rows(const typename Type::Left* left, int64_t a_stride, const uint32_t* b, int64_t num_units, float* out,
                   int64_t out_stride, int64_t num_rows, bool adds, const uint32_t* ahead = nullptr) {
    const auto* a = reinterpret_cast<const uint32_t*>(left);
    a_stride /= Type::kPerUnit;
    auto tile = [&]<int R, int kAhead>(int64_t first, const uint32_t* lines) {
        Lanes sums[R][V];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sums[r][v] = _mm512_setzero_ps();
        multiply<Type, R, V, kAhead>(a + first * a_stride, a_stride, b, num_units, lines, sums);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) {
                float* to = out + (first + r) * out_stride + 16 * v;
                _mm512_storeu_ps(to, adds ? _mm512_add_ps(_mm512_loadu_ps(to), sums[r][v]) : sums[r][v]);
            }
    };
    auto tile_of = [&]<int kAhead>(int64_t height, int64_t first, const uint32_t* lines) {
        switch (height) {
            case 1: return tile.template operator()<1, kAhead>(first, lines);
            case 2: return tile.template operator()<2, kAhead>(first, lines);
            case 3: return tile.template operator()<3, kAhead>(first, lines);
            case 4: return tile.template operator()<4, kAhead>(first, lines);
            case 5: return tile.template operator()<5, kAhead>(first, lines);
            default: return tile.template operator()<6, kAhead>(first, lines);
        }
    };
    // Tiles of nearly equal height: 8 rows as 4 and 4 keep the pipelines fuller than 6 and 2.
    const int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
    const int64_t lines_each = num_tiles < 4 ? 2 : 1;
    for (int64_t i = 0, first = 0; i < num_tiles; ++i) {
        const int64_t height = num_rows / num_tiles + (i < num_rows % num_tiles);
        const uint32_t* lines = ahead + i * lines_each * 16;
        // A single tile follows b as fast as memory delivers it.
        if (!ahead || num_tiles == 1 || i * lines_each >= 4) tile_of.template operator()<0>(height, first, nullptr);
        else if (lines_each == 2) tile_of.template operator()<2>(height, first, lines);
        else tile_of.template operator()<1>(height, first, lines);
        first += height;
    }
}

}  // namespace tiergate
