// Two AVX2 registers as the 16 lanes. bfloat16 is widened as it is read, and products are in float32.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tiergate {

struct Lanes {
    __m256 low, high;
};
struct Units {
    __m256i low, high;
};
// All bits of a lane, or none.
struct Mask {
    __m256 low, high;
};

#ifdef TIERGATE_EMULATED_TILES
// The panels of processors with tiles.
constexpr int64_t kPanel = 64;
#else
constexpr int64_t kPanel = 32;
#endif
// 16 KiB, half of the nearest cache.
constexpr int64_t kUnitsPerSlice = 128;
constexpr int64_t kRowsPerBlock = 96;
constexpr int64_t kRanksAtOnce = 4, kShrinkRows = 1, kExpandRows = 12;

inline Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }

inline Lanes splat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Lanes load_floats(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void store_floats(float* to, Lanes value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
}
inline void store_units(uint32_t* to, Units value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), value.high);
}
// a b + c
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes larger(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes nearest(Lanes x) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.low, kMode), _mm256_round_ps(x.high, kMode)};
}

// x 2^whole, in two factors, since one alone can neither reach the smallest numbers nor exceed the largest.
inline __m256 scale(__m256 x, __m256 whole) {
    whole = _mm256_max_ps(_mm256_min_ps(whole, _mm256_set1_ps(252.f)), _mm256_set1_ps(-252.f));
    const __m256i exponent = _mm256_cvtps_epi32(whole), first = _mm256_srai_epi32(exponent, 1);
    auto power = [](__m256i e) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
    };
    return _mm256_mul_ps(_mm256_mul_ps(x, power(first)), power(_mm256_sub_epi32(exponent, first)));
}
inline Lanes scale(Lanes x, Lanes whole) { return {scale(x.low, whole.low), scale(x.high, whole.high)}; }

inline float sum_of(Lanes x) {
    const __m256 eight = _mm256_add_ps(x.low, x.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest_of(Lanes x) {
    const __m256 eight = _mm256_max_ps(x.low, x.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline Mask lanes_between(int64_t begin, int64_t end) {
    auto half = [=](int64_t first) {
        const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(int(first)));
        const auto from = int(std::clamp<int64_t>(begin, 0, 16)), to = int(std::clamp<int64_t>(end, 0, 16));
        return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(from), lane),
                                                       _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane)));
    };
    return {half(0), half(8)};
}
inline Lanes select(Mask mask, Lanes chosen, Lanes other) {
    return {_mm256_blendv_ps(other.low, chosen.low, mask.low), _mm256_blendv_ps(other.high, chosen.high, mask.high)};
}

// 16 numbers from memory that holds only `count` of them; the others are zero.
template <class T>
struct Sixteen {
    alignas(32) T values[16] = {};
    Sixteen() = default;
    Sixteen(const T* from, int64_t count) { std::copy_n(from, std::clamp<int64_t>(count, 0, 16), values); }
};

inline Units load_units(const void* from, int64_t count) {
    const auto* units = static_cast<const uint32_t*>(from);
    auto eight = [](const uint32_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); };
    if (count >= 16) return {eight(units), eight(units + 8)};
    const Sixteen some(units, count);
    return {eight(some.values), eight(some.values + 8)};
}

struct Float32 {
    using Element = float;
    using Left = float;
    static constexpr int64_t kPerUnit = 1;

    static __m256 part(const uint32_t* units, int) { return _mm256_loadu_ps(reinterpret_cast<const float*>(units)); }
    static Lanes multiply_add(Lanes sum, Units a, Units b) {
        return {_mm256_fmadd_ps(_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(b.low), sum.low),
                _mm256_fmadd_ps(_mm256_castsi256_ps(a.high), _mm256_castsi256_ps(b.high), sum.high)};
    }
    static Lanes load(const float* from, int64_t count) {
        return count >= 16 ? load_floats(from) : load_floats(Sixteen(from, count).values);
    }
    static void store(float* to, int64_t count, Lanes value) {
        if (count >= 16) return store_floats(to, value);
        Sixteen<float> all;
        store_floats(all.values, value);
        std::copy_n(all.values, std::max<int64_t>(count, 0), to);
    }
    static void store_left(float* to, Lanes value) { store_floats(to, value); }
    static Lanes round(Lanes value) { return value; }
    static Units join(const float* const* rows, int64_t column, int64_t count) {
        const Lanes value = rows[0] ? load(rows[0] + column, count) : splat(0.f);
        return {_mm256_castps_si256(value.low), _mm256_castps_si256(value.high)};
    }
};

struct BFloat16 {
    using Element = uint16_t;
    using Left = float;
    static constexpr int64_t kPerUnit = 2;

    // The first, or the second, of the two numbers of each of 8 units.
    static __m256 part(const uint32_t* units, int index) {
        return part(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(units)), index);
    }
    static __m256 part(__m256i both, int index) {
        return _mm256_castsi256_ps(index ? _mm256_and_si256(both, _mm256_set1_epi32(int(0xffff0000)))
                                         : _mm256_slli_epi32(both, 16));
    }
    static Lanes multiply_add(Lanes sum, Units a, Units b) {
        for (int i = 0; i < 2; ++i)
            sum = {_mm256_fmadd_ps(part(a.low, i), part(b.low, i), sum.low),
                   _mm256_fmadd_ps(part(a.high, i), part(b.high, i), sum.high)};
        return sum;
    }
    static Lanes load(const uint16_t* from, int64_t count) {
        const Units units = count >= 16 ? halves(from) : halves(Sixteen(from, count).values);
        return {_mm256_castsi256_ps(_mm256_slli_epi32(units.low, 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(units.high, 16))};
    }
    static void store(uint16_t* to, int64_t count, Lanes value) {
        const __m256i low = _mm256_srli_epi32(rounded(value.low), 16), high = _mm256_srli_epi32(rounded(value.high), 16);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        if (count >= 16) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
        Sixteen<uint16_t> all;
        _mm256_store_si256(reinterpret_cast<__m256i*>(all.values), packed);
        std::copy_n(all.values, std::max<int64_t>(count, 0), to);
    }
    static void store_left(float* to, Lanes value) { store_floats(to, value); }
    static Lanes round(Lanes value) {
        const __m256i upper = _mm256_set1_epi32(int(0xffff0000));
        return {_mm256_castsi256_ps(_mm256_and_si256(rounded(value.low), upper)),
                _mm256_castsi256_ps(_mm256_and_si256(rounded(value.high), upper))};
    }
    static Units join(const uint16_t* const* rows, int64_t column, int64_t count) {
        const Units first = half(rows[0], column, count), second = half(rows[1], column, count);
        return {_mm256_or_si256(first.low, _mm256_slli_epi32(second.low, 16)),
                _mm256_or_si256(first.high, _mm256_slli_epi32(second.high, 16))};
    }

private:
    static Units halves(const uint16_t* from) {
        auto eight = [](const uint16_t* at) {
            return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        };
        return {eight(from), eight(from + 8)};
    }
    static Units half(const uint16_t* row, int64_t column, int64_t count) {
        if (!row) return {_mm256_setzero_si256(), _mm256_setzero_si256()};
        return count >= 16 ? halves(row + column) : halves(Sixteen(row + column, count).values);
    }
    // Rounds to nearest, ties to even; NaN stays NaN. The result is in the upper halves.
    static __m256i rounded(__m256 value) {
        const __m256i bits = _mm256_castps_si256(value), one = _mm256_set1_epi32(1);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
        const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
        return _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), _mm256_castps_si256(is_nan));
    }
};

// Works in four quarters of 8 x 8.
inline void transpose(const uint32_t* const* rows, int64_t num_columns, uint32_t* to, int64_t stride) {
    for (int64_t column = 0; column < std::min<int64_t>(num_columns, 16); column += 8) {
        const int64_t count = std::min<int64_t>(num_columns - column, 8);
        const __m256i is_read =
            _mm256_cmpgt_epi32(_mm256_set1_epi32(int(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        for (int half = 0; half < 16; half += 8) {
            __m256 a[8], b[8];
            for (int i = 0; i < 8; ++i) {
                const auto* row = reinterpret_cast<const float*>(rows[half + i]);
                a[i] = row ? _mm256_maskload_ps(row + column, is_read) : _mm256_setzero_ps();
            }
            for (int i = 0; i < 8; i += 2) {
                b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
                b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
            }
            for (int i = 0; i < 8; i += 4) {
                a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
                a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
                a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
                a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
            }
            for (int i = 0; i < 4; ++i) {
                b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
                b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
            }
            for (int i = 0; i < count; ++i)
                _mm256_storeu_ps(reinterpret_cast<float*>(to) + (column + i) * stride + half, b[i]);
        }
    }
}

// As many rows at once as registers hold: 6 x 2 registers of sums. One or two rows are taken in twice the width, so
// that more sums are in flight.
constexpr int kMaxRows = 6, kMaxWideRows = 2;

#define INLINE __attribute__((always_inline))

// work(0) .. work(N - 1), unrolled: sums whose indices are known at compile time are kept in registers.
template <int... I>
[[gnu::always_inline]] inline void repeat(const auto& work, std::integer_sequence<int, I...>) {
    (work(std::integral_constant<int, I>()), ...);
}
template <int N>
[[gnu::always_inline]] inline void repeat(const auto& work) {
    repeat(work, std::make_integer_sequence<int, N>());
}

// In place: compilers that choose another register for the sum run out of registers.
[[gnu::always_inline]] inline void add_product(__m256& sum, __m256 a, __m256 b) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
}

// out's rows [R, 16 G] floats = a b, or += if `adds`. b's rows are 16 G of 16 V units. Meanwhile, one of every V cache
// lines from `ahead` on is fetched for later.
template <class Type, int R, int G, int V>
[[gnu::noinline]] void multiply(const float* a, int64_t a_stride, const uint32_t* b, int64_t num_units, const uint32_t* ahead,
                                float* out, int64_t out_stride, bool adds) {
    constexpr int kWidth = 2 * G;
    __m256 sums[R * kWidth];
    repeat<R * kWidth>([&](auto i) INLINE { sums[i] = _mm256_setzero_ps(); });
    for (int64_t k = 0; k < num_units; ++k, a += Type::kPerUnit, b += 16 * V, ahead += 16 * V) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        repeat<Type::kPerUnit>([&](auto part) INLINE {
            __m256 right[kWidth];
            repeat<kWidth>([&](auto g) INLINE { right[g] = Type::part(b + 8 * g, part); });
            repeat<R>([&](auto r) INLINE {
                const __m256 left = _mm256_broadcast_ss(a + r * a_stride + part);
                repeat<kWidth>([&](auto g) INLINE { add_product(sums[r * kWidth + g], left, right[g]); });
            });
        });
    }
    repeat<R * kWidth>([&](auto i) INLINE {
        float* to = out + i / kWidth * out_stride + i % kWidth * 8;
        _mm256_storeu_ps(to, adds ? _mm256_add_ps(_mm256_loadu_ps(to), sums[i]) : sums[i]);
    });
}

#undef INLINE

// out's rows [num_rows, 16 * V] floats = a b, or += if `adds`; a's rows are a_stride of its numbers apart.
// `ahead`: the next b, or null; it is as large as b, and fetched from memory while the processor multiplies.
template <class Type, int V>
void multiply_rows(const float* a, int64_t a_stride, const uint32_t* b, int64_t num_units, float* out,
                   int64_t out_stride, int64_t num_rows, bool adds, const uint32_t* ahead = nullptr) {
    // One or two rows follow b as fast as memory delivers it, so nothing is fetched ahead.
    int line = ahead && num_rows > kMaxWideRows ? 0 : V;
    auto tile = [&]<int R, int G>(int64_t first, int v) {
        const uint32_t* next = line < V ? ahead + 16 * line++ : b;
        multiply<Type, R, G, V>(a + first * a_stride, a_stride, b + 16 * v, num_units, next,
                                out + first * out_stride + 16 * v, out_stride, adds);
    };
    auto narrow = [&](int64_t height, int64_t first, int v) {
        switch (height) {
            case 1: return tile.template operator()<1, 1>(first, v);
            case 2: return tile.template operator()<2, 1>(first, v);
            case 3: return tile.template operator()<3, 1>(first, v);
            case 4: return tile.template operator()<4, 1>(first, v);
            case 5: return tile.template operator()<5, 1>(first, v);
            default: return tile.template operator()<6, 1>(first, v);
        }
    };
    auto wide = [&](int64_t height, int64_t first, int v) {
        return height == 1 ? tile.template operator()<1, 2>(first, v) : tile.template operator()<2, 2>(first, v);
    };
    const int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
    for (int64_t i = 0, first = 0; i < num_tiles; ++i) {
        const int64_t height = num_rows / num_tiles + (i < num_rows % num_tiles);
        for (int v = 0; v < V;) {
            const bool is_wide = height <= kMaxWideRows && V - v >= 2;
            is_wide ? wide(height, first, v) : narrow(height, first, v);
            v += is_wide ? 2 : 1;
        }
        first += height;
    }
}

}  // namespace tiergate
