// The number formats that kernels compute in, as 16 lanes of the processor's vectors, and what they share.
//
// Matrix products work on units of 4 bytes: one float, or two neighbouring bfloat16. A unit of the left side is
// broadcast and multiplied with 16 units of the right side, so one kernel serves both formats. `Left` is the type that
// the left side's numbers are kept in. Sums run over the units in their order, for every row alike: a row's bits do not
// depend on how many rows there are. AMX's tiles (linear/tiled.h) sum in another order.
//
// Each instruction set has a header with the same names: types Lanes (16 floats), Units (16 units) and Mask;
// arithmetic; Float32 and BFloat16, whose `load`, `store` and `join` touch only the first `count` of 16 numbers, `join`
// making units of the row, or the two rows, that share them (a null row counts as zeros); `transpose`, rows[i][j] ->
// to[j][i], to's rows apart by `stride` units, of 16 rows (null ones count as zeros) and the first `num_columns` of at
// most 16; and `multiply_rows`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#ifdef __AVX512BF16__
#include "avx512.h"
#else
#include "avx2.h"
#endif

namespace tiergate {

// 2^(whole + part), part between -1/2 and 1/2, to about one unit in the last place.
inline Lanes power_of_two(Lanes whole, Lanes part) {
    // (ln 2)^k / k!
    Lanes sum = splat(1.52527338e-5f);
    for (float c : {1.54035304e-4f, 1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.f})
        sum = fused(sum, part, splat(c));
    return scale(sum, whole);
}

// 2^x; NaN for infinities.
inline Lanes exp2(Lanes x) {
    const Lanes whole = nearest(x);
    return power_of_two(whole, x - whole);
}

// e^x; NaN for infinity. The product with 1 / ln 2 is kept in twice the precision, for x far from 0.
inline Lanes exp(Lanes x) {
    // Far below zero, the product's remainder after rounding would be no small part. NaN passes.
    x = larger(splat(-200.f), x);
    const Lanes high = splat(1.44269502f), low = splat(1.92596299e-8f);
    const Lanes whole = nearest(x * high);
    return power_of_two(whole, fused(x, low, fused(x, high, splat(0.f) - whole)));
}

// Numbers as the left side of products; `to` has room for whole lanes.
template <class Type>
void to_left(const typename Type::Element* from, int64_t count, typename Type::Left* to) {
    if constexpr (std::is_same_v<typename Type::Left, typename Type::Element>) std::copy_n(from, count, to);
    else
        for (int64_t k = 0; k < count; k += 16) Type::store_left(to + k, Type::load(from + k, count - k));
}

// A buffer of this thread that grows as needed; its content is undefined.
template <class T, int Name>
T* scratch(size_t count) {
    alignas(64) thread_local std::vector<T> buffer;
    if (buffer.size() < count) buffer.resize(count);
    return buffer.data();
}

}  // namespace tiergate
