// Rotary embedding in place, in the half-split form.
#pragma once

#include "../native/pool.h"
#include "../native/vectors.h"

// x [num_tokens, num_heads, head_dim], tokens apart by x_stride; cos and signed sin [num_tokens, head_dim] dense.
template <class Type>
void rope(typename Type::Element* x, int64_t x_stride, const typename Type::Element* cos,
          const typename Type::Element* sin, int64_t num_tokens, int64_t num_heads, int64_t head_dim,
          int64_t num_threads) {
    const int64_t half = head_dim / 2;
    parallel_rows(num_threads, num_tokens, 16, [&](int64_t first, int64_t end) {
        for (int64_t token = first; token < end; ++token)
            for (int64_t head = 0; head < num_heads; ++head)
                for (int64_t k = 0; k < half; k += 16) {
                    const __mmask16 mask = first_lanes(half - k);
                    auto* low = x + token * x_stride + head * head_dim + k;
                    auto* high = low + half;
                    const auto* c = cos + token * head_dim + k;
                    const auto* s = sin + token * head_dim + k;
                    const Lanes a = Type::load(low, mask), b = Type::load(high, mask);
                    const Lanes rotated_a = Type::round(_mm512_mul_ps(a, Type::load(c, mask)));
                    const Lanes rotated_b = Type::round(_mm512_mul_ps(b, Type::load(c + half, mask)));
                    Type::store(low, mask, _mm512_fmadd_ps(b, Type::load(s, mask), rotated_a));
                    Type::store(high, mask, _mm512_fmadd_ps(a, Type::load(s + half, mask), rotated_b));
                }
    });
}
