// Rotary embedding in place, in the half-split form.
#pragma once

#include "../native/pool.h"
#include "../native/vectors.h"

namespace tiergate {

// x [num_tokens, num_heads, head_dim], tokens x_stride apart; cos and signed sin [num_tokens, head_dim] dense.
template <class Type>
void rope(typename Type::Element* x, int64_t x_stride, const typename Type::Element* cos,
          const typename Type::Element* sin, int64_t num_tokens, int64_t num_heads, int64_t head_dim,
          int64_t num_threads) {
    const int64_t half = head_dim / 2;
    parallel_rows(num_threads, num_tokens, 16, [&](int64_t first, int64_t end) {
        for (int64_t token = first; token < end; ++token)
            for (int64_t head = 0; head < num_heads; ++head)
                for (int64_t k = 0; k < half; k += 16) {
                    const int64_t count = half - k;
                    auto* low = x + token * x_stride + head * head_dim + k;
                    auto* high = low + half;
                    const auto* c = cos + token * head_dim + k;
                    const auto* s = sin + token * head_dim + k;
                    const Lanes a = Type::load(low, count), b = Type::load(high, count);
                    const Lanes rotated_a = Type::round(a * Type::load(c, count));
                    const Lanes rotated_b = Type::round(b * Type::load(c + half, count));
                    Type::store(low, count, fused(b, Type::load(s, count), rotated_a));
                    Type::store(high, count, fused(a, Type::load(s + half, count), rotated_b));
                }
    });
}

}  // namespace tiergate
